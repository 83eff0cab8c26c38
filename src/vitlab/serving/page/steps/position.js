// Step 3: which positions are alike.

import { Grid } from "../grid.js";
import { set, state } from "../state.js";
import { number, say } from "../words.js";
import { highest, range, section, showLegend } from "./step.js";

export function position(learned, places) {
  const step = section("position");
  const [rows, columns] = learned.grid;
  if (!learned.positions || rows !== places.rows || columns !== places.columns) {
    step.absent();
    return {};
  }
  const grid = new Grid(step.frame, rows, columns, "position.grid", { choose: (patch) => set({ patch }) });
  return {
    render() {
      const values = learned.positions[state.patch];
      grid.mark(state.patch);
      const [most] = highest(values, 1, state.patch);
      if (most === undefined) {
        step.note(say("position.alone", { place: grid.where(state.patch) }));
        return;
      }
      // the place itself is always 1: the scale is that of the others
      const { low, high } = range(values.filter((_, place) => place !== state.patch));
      grid.paint(values, { low, high });
      showLegend(step.legend, low, high);
      const told = [say("position.note", { place: grid.where(state.patch), first: grid.where(most), value: number(values[most], 2) })];
      if (learned.nearness) {
        const words = learned.nearness.clear ? "position.near" : "position.scattered";
        told.push(say(words, { value: number(learned.nearness.correlation, 2) }));
      }
      step.note(told.join(" "));
    },
    name: () => grid.name(),
  };
}
