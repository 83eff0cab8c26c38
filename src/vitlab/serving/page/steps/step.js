// What the steps share: their section of the page, notes, and who is spoken for.

import { explain, number, say } from "../words.js";

/** The parts of a step's section; `absent()` says that the model has no such step. */
export function section(name) {
  const root = document.getElementById(name);
  const find = (selector) => root.querySelector(selector);
  return {
    root,
    find,
    frame: find(".frame"),
    legend: find(".legend"),
    absent: () => root.classList.add("is-absent"),
    busy: (yes) => find("figure")?.setAttribute("aria-busy", yes),
    /** A sentence under the step; spoken aloud if the visitor is in this step. */
    note(text) {
      const sentence = text.charAt(0).toUpperCase() + text.slice(1);
      find(".note").textContent = sentence;
      if (root.contains(document.activeElement)) document.getElementById("spoken").textContent = sentence;
    },
    fail(error) {
      if (error.name !== "AbortError") this.note(explain(error));
    },
  };
}

/** The scale under coloured places: from the least that is there, or from 0, to the most. */
export function showLegend(element, low, high, write = (value) => number(value, 2)) {
  const [from, to] = [document.createElement("span"), document.createElement("span")];
  from.textContent = low === 0 ? write(0) : say("legend.low", { value: write(low) });
  to.textContent = say("legend.high", { value: write(high) });
  element.replaceChildren(from, document.createElement("i"), to);
}

/** The places with the highest values, one left out. */
export function highest(values, count, without = -1) {
  const places = [...values.keys()].filter((place) => place !== without);
  return places.sort((a, b) => values[b] - values[a]).slice(0, count);
}

export function range(values) {
  return { low: Math.min(...values), high: Math.max(...values) };
}
