// Step 4: how alike the tokens are after each layer.

import { across, Grid } from "../grid.js";
import { set, state } from "../state.js";
import { number, say } from "../words.js";
import { highest, range, section, showLegend } from "./step.js";

/** The layers whose tokens are few enough to compare every two of them. */
export function comparable(model) {
  const few = ([rows, columns]) => rows * columns * (rows * columns + 1) <= model.limits.values;
  return [...model.token_grids.keys()].filter((layer) => few(model.token_grids[layer]));
}

export function tokens(model, places) {
  const step = section("tokens");
  const layers = comparable(model);
  if (!layers.length) {
    step.absent();
    return {};
  }
  const slider = document.getElementById("tokens-layer");
  slider.max = layers.length - 1;
  slider.addEventListener("input", () => set({ after: layers[slider.value] }));
  let [grid, answers, shown] = [null, null, null];

  function fit([rows, columns]) {
    if (grid?.rows === rows && grid?.columns === columns) return;
    const choose = (place) => set({ patch: across(place, { rows, columns }, places) });
    grid = new Grid(step.frame, rows, columns, "tokens.grid", { choose });
  }

  async function load() {
    const layer = state.after;
    try {
      step.busy(true);
      const answer = await answers.get(`v1/tokens?layer=${layer}`);
      if (layer !== state.after) return;
      shown = answer;
      paint();
    } catch (error) {
      step.fail(error);
    } finally {
      step.busy(false);
    }
  }

  function paint() {
    fit(shown.grid);
    const [{ similarity, norms }] = shown.images;
    const place = across(state.patch, places, grid);
    const values = similarity[place];
    grid.mark(place);
    const [most] = highest(values, 1, place);
    if (most === undefined) {
      step.note(say("tokens.alone", { place: grid.where(place) }));
      return;
    }
    const { low, high } = range(values.filter((_, other) => other !== place));
    grid.paint(values, { low, high, veil: true });
    showLegend(step.legend, low, high);
    const lengths = norms.flat();
    step.note(
      say("tokens.note", {
        place: grid.where(place),
        first: grid.where(most),
        value: number(values[most], 2),
        length: number(lengths[place], 1),
        mean: number(lengths.reduce((sum, length) => sum + length, 0) / lengths.length, 1),
      }),
    );
  }

  return {
    show(_, given) {
      [answers, shown] = [given, null];
    },
    render() {
      if (!layers.includes(state.after)) state.after = layers[layers.length - 1];
      slider.value = layers.indexOf(state.after);
      const text = state.after ? number(state.after) : say("tokens.start");
      document.getElementById("tokens-layer-text").value = text;
      slider.setAttribute("aria-valuetext", text);
      fit(model.token_grids[state.after]);
      if (shown?.layer === state.after) paint();
      else if (answers) load();
    },
    name: () => grid?.name(),
  };
}
