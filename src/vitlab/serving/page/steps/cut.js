// Step 1: the picture cut into patches, and the patches in a row.

import { Grid } from "../grid.js";
import { set, state } from "../state.js";
import { number, say } from "../words.js";
import { section } from "./step.js";

const AROUND = 4; // patches of the sequence on either side of the chosen one

export function cut(model) {
  const step = section("cut");
  if (!model.patch) {
    step.absent();
    return {};
  }
  const [rows, columns] = model.grid;
  const grid = new Grid(step.frame, rows, columns, "cut.grid", { choose: (patch) => set({ patch }) });
  const toggle = document.getElementById("cut-toggle");
  const strip = document.getElementById("cut-strip");
  let picture = null;

  let [waiting, visible] = [false, false]; // the cut waits for the frame to come into view, so that it is seen

  toggle.addEventListener("click", () => part(!step.frame.classList.contains("apart")));
  const watcher = new IntersectionObserver(
    (entries) => {
      visible = entries[entries.length - 1].isIntersecting;
      play();
    },
    { threshold: 0.4 },
  );
  watcher.observe(step.frame);

  function play() {
    if (!waiting || !visible) return;
    waiting = false;
    setTimeout(() => part(true), 300);
  }

  function part(apart) {
    step.frame.classList.toggle("apart", apart);
    toggle.setAttribute("aria-pressed", apart);
  }

  /** An element's background is one patch of the picture. */
  function fill(element, place) {
    const [row, column] = [Math.floor(place / columns), place % columns];
    const at = (index, count) => (count > 1 ? (100 * index) / (count - 1) : 0);
    element.style.backgroundImage = `url(${picture.url})`;
    element.style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    element.style.backgroundPosition = `${at(column, columns)}% ${at(row, rows)}%`;
  }

  return {
    show(given) {
      picture = given;
      grid.cells.forEach(fill);
      waiting = !matchMedia("(prefers-reduced-motion: reduce)").matches;
      part(!waiting);
      play();
    },
    render() {
      grid.mark(state.patch);
      const [height, width] = model.patch;
      const values = height * width * 3;
      step.note(
        say("cut.note", { number: number(state.patch + 1), total: number(rows * columns), height, width, channels: 3, values: number(values) }),
      );
      if (!picture) return;
      const first = Math.max(0, Math.min(state.patch - AROUND, rows * columns - 2 * AROUND - 1));
      const places = Array.from({ length: Math.min(2 * AROUND + 1, rows * columns) }, (_, i) => first + i);
      strip.replaceChildren(
        ...places.map((place) => {
          const item = document.createElement("li");
          const patch = document.createElement("i");
          fill(patch, place);
          item.classList.toggle("chosen", place === state.patch);
          item.append(patch, String(place + 1));
          return item;
        }),
      );
    },
    name: () => grid.name(),
  };
}
