// Step 2: what the projection looks for, and what it keeps of the chosen patch.

import { Grid } from "../grid.js";
import { set, state } from "../state.js";
import { number, percent, say } from "../words.js";
import { section } from "./step.js";

export function embed(model, learned) {
  const step = section("embed");
  const list = document.getElementById("embed-filters");
  const { filters } = learned;
  if (!filters) {
    step.absent();
    return {};
  }
  const count = filters.pictures.length;
  const total = filters.explained.reduce((sum, share) => sum + share, 0);
  const [rows, columns] = model.grid;
  const projects = Boolean(model.patch) && filters.pictures[0].length === model.patch[0];
  const components = filters.pictures.map(unit);
  const items = filters.pictures.map(tile);
  list.replaceChildren(...items.map((item) => item.element));
  let grid = null;
  if (projects) {
    grid = new Grid(step.frame, rows, columns, "embed.grid", { choose: (patch) => set({ patch }) });
  } else {
    step.find(".pair").remove();
    document.getElementById("embed-text").dataset.t = "embed.convolution";
  }
  let picture = null;

  /** A component from its picture, whose grey is 0, at length 1. */
  function unit(pixels) {
    const values = pixels.flat(2).map((value) => value - 0.5);
    const length = Math.hypot(...values) || 1;
    return values.map((value) => value / length);
  }

  function tile(pixels) {
    const element = document.createElement("li");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    const bar = document.createElement("i");
    element.append(canvas, bar);
    put(canvas, pixels.flat(2).map((value) => 255 * value), pixels[0].length, pixels.length);
    return { element, canvas, bar };
  }

  function put(canvas, values, width, height) {
    [canvas.width, canvas.height] = [width, height];
    const image = canvas.getContext("2d").createImageData(width, height);
    for (let pixel = 0; pixel < width * height; pixel++) {
      image.data.set([values[3 * pixel], values[3 * pixel + 1], values[3 * pixel + 2], 255], 4 * pixel);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** The chosen patch as the model takes it: normalised, red, green and blue of each pixel in turn. */
  function patchValues() {
    const [height, width] = model.patch;
    const [top, left] = [Math.floor(state.patch / columns) * height, (state.patch % columns) * width];
    const { data } = picture.view.getContext("2d").getImageData(left, top, width, height);
    const { mean, std } = model.preprocess;
    return Array.from({ length: 3 * width * height }, (_, i) => {
      const channel = i % 3;
      return (data[4 * Math.floor(i / 3) + channel] / 255 - mean[channel]) / std[channel];
    });
  }

  function answer() {
    const [height, width] = model.patch;
    const { mean, std } = model.preprocess;
    const patch = patchValues();
    const strengths = components.map((component) => component.reduce((sum, value, i) => sum + value * patch[i], 0));
    const rebuilt = patch.map((_, i) => components.reduce((sum, component, k) => sum + strengths[k] * component[i], 0));
    const toPixels = (values) => values.map((value, i) => 255 * (value * std[i % 3] + mean[i % 3]));
    put(document.getElementById("embed-patch"), toPixels(patch), width, height);
    put(document.getElementById("embed-rebuilt"), toPixels(rebuilt), width, height);
    const most = Math.max(...strengths.map(Math.abs), 1e-9);
    items.forEach(({ bar }, k) => {
      bar.style.transform = `scaleX(${Math.abs(strengths[k]) / most})`;
      bar.classList.toggle("against", strengths[k] < 0);
    });
    return strengths.map(Math.abs).indexOf(most);
  }

  function smooth() {
    if (filters.smooth === null) return say("embed.small");
    return filters.smooth === filters.pictures.length ? say("embed.all") : say("embed.smooth", { smooth: number(filters.smooth) });
  }

  return {
    show(given) {
      picture = given;
    },
    render() {
      const share = percent(Math.min(total, 1));
      grid?.mark(state.patch);
      if (projects && picture) {
        const strongest = answer();
        step.note(`${say("embed.note", { count, share, place: grid.where(state.patch), number: strongest + 1 })} ${smooth()}`);
      } else {
        step.note(`${say("embed.plain", { count, share })} ${smooth()}`);
      }
    },
    name() {
      grid?.name();
      items.forEach(({ canvas, element }, k) => {
        const text = say("embed.filter", { number: number(k + 1), share: percent(filters.explained[k]) });
        canvas.setAttribute("aria-label", text);
        element.title = text;
      });
      if (!projects) return;
      const text = say("embed.rebuilt", { count });
      document.getElementById("embed-rebuilt-text").textContent = text;
      document.getElementById("embed-rebuilt").setAttribute("aria-label", text);
    },
  };
}
