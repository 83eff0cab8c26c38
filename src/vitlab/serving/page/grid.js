// A grid of places over a picture: pointed at, touched, or walked through with the arrow keys (one tab stop, WAI-ARIA's
// grid pattern). All grids of the page show the same chosen place.

import { paint } from "./colours.js";
import { say } from "./words.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The place of one grid that lies where the middle of another's lies; a grid is its `rows` and `columns`. */
export function across(place, from, to) {
  const row = Math.floor(((Math.floor(place / from.columns) + 0.5) / from.rows) * to.rows);
  return row * to.columns + Math.floor((((place % from.columns) + 0.5) / from.columns) * to.columns);
}

export class Grid {
  /** `choose(place)` is called when a place is pointed at or moved to, `press(place)` when it is clicked or Enter or Space is hit. */
  constructor(holder, rows, columns, label, { choose, press = null }) {
    Object.assign(this, { rows, columns, label, choose, press });
    this.heat = document.createElement("canvas");
    this.heat.className = "heat";
    this.heat.setAttribute("aria-hidden", "true");
    this.element = document.createElement("div");
    this.element.className = "grid";
    this.element.setAttribute("role", "grid");
    this.cells = [];
    for (let row = 0; row < rows; row++) {
      const line = document.createElement("div");
      line.setAttribute("role", "row");
      for (let column = 0; column < columns; column++) {
        const cell = document.createElement("div");
        cell.setAttribute("role", "gridcell");
        cell.tabIndex = -1;
        cell.dataset.place = this.cells.length;
        line.append(cell);
        this.cells.push(cell);
      }
      this.element.append(line);
    }
    holder.replaceChildren(...holder.querySelectorAll(":scope > img"), this.heat, this.element);
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("pointerdown", (event) => this.#point(event));
    this.element.addEventListener("pointermove", (event) => this.#point(event));
    this.element.addEventListener("click", (event) => this.#click(event));
    this.element.addEventListener("focusin", (event) => this.#move(Number(event.target.dataset.place)));
    this.current = 0;
    this.mark(0);
    this.name();
  }

  /** Say the names of the grid and its places in the language of the page. */
  name() {
    this.element.setAttribute("aria-label", say(this.label));
    this.cells.forEach((cell, place) => cell.setAttribute("aria-label", this.where(place)));
  }

  where(place) {
    return say("place", { row: Math.floor(place / this.columns) + 1, column: (place % this.columns) + 1 });
  }

  /** Show which place is chosen. */
  mark(place) {
    const before = this.cells[this.current];
    before.tabIndex = -1;
    before.classList.remove("chosen");
    before.removeAttribute("aria-selected");
    this.current = Math.min(place, this.cells.length - 1);
    const cell = this.cells[this.current];
    cell.tabIndex = 0;
    cell.classList.add("chosen");
    cell.setAttribute("aria-selected", "true");
    if (this.element.contains(document.activeElement)) cell.focus({ preventScroll: true });
  }

  /** Colour the places, one value each, from the lowest to the highest of `range`. */
  paint(values, range) {
    values.forEach((value, place) => (this.cells[place].dataset.value = value));
    paint(this.heat, values, this.rows, this.columns, range);
    this.heat.hidden = false;
  }

  clear() {
    this.cells.forEach((cell) => delete cell.dataset.value);
    this.heat.hidden = true;
  }

  /** Marked here at once, for the next key may come before the rest of the page has followed. */
  #move(place) {
    this.mark(place);
    this.choose(place);
  }

  #key(event) {
    if (event.altKey || event.metaKey) return;
    if (this.press && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      this.press(this.current);
      return;
    }
    let [row, column] = [Math.floor(this.current / this.columns), this.current % this.columns];
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      row = Math.min(Math.max(row + down, 0), this.rows - 1);
      column = Math.min(Math.max(column + right, 0), this.columns - 1);
    } else if (event.key === "Home" || event.key === "End") {
      const last = event.key === "End";
      column = last ? this.columns - 1 : 0;
      if (event.ctrlKey) row = last ? this.rows - 1 : 0;
    } else {
      return;
    }
    event.preventDefault();
    this.#move(row * this.columns + column);
    this.cells[this.current].scrollIntoView({ block: "nearest" });
  }

  #point(event) {
    // a finger stays with the element it came down on: find what is under it
    const cell = event.pointerType === "mouse" ? event.target : document.elementFromPoint(event.clientX, event.clientY);
    if (cell?.dataset?.place === undefined || !this.element.contains(cell)) return;
    if (Number(cell.dataset.place) !== this.current) this.#move(Number(cell.dataset.place));
  }

  #click(event) {
    const place = event.target.dataset.place;
    if (place === undefined) return;
    this.#move(Number(place));
    this.cells[this.current].focus({ preventScroll: true });
    this.press?.(Number(place));
  }
}
