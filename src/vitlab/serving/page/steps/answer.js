// Step 6: the probabilities, the numbers or the mask, and how they change when patches are covered.

import { classColour } from "../colours.js";
import { Grid } from "../grid.js";
import { covered, zero } from "../picture.js";
import { ask } from "../service.js";
import { set, state } from "../state.js";
import { number, percent, say } from "../words.js";
import { section } from "./step.js";

const TOP = 5;
const MANY = 1000; // as many as one answer gives, so that classes can be compared before and after
const PAUSE = 120; // milliseconds between the last change and the question

/** An answer of any kind as classes are: of a mask the share of each class, of numbers their values. */
function listed({ classes, shares, numbers }) {
  if (classes) return classes;
  const found = Object.entries(shares ?? numbers).map(([label, value]) => ({ label, index: label, probability: value }));
  return shares ? found.sort((one, other) => other.probability - one.probability) : found; // an object has the keys "0", "1" first
}

export function answer(model, places) {
  const step = section("answer");
  const bars = document.getElementById("answer-bars");
  const clear = document.getElementById("answer-clear");
  if (!model.num_classes) {
    step.absent();
    const text = () => {
      document.getElementById("answer-absent").textContent = say("answer.absent", { count: number(model.num_features) });
    };
    return { name: text, render: text };
  }
  const { rows, columns } = places;
  const grid = new Grid(step.frame, rows, columns, "answer.grid", { choose: (patch) => set({ patch }), press: toggle });
  const hidden = new Set();
  step.frame.style.setProperty("--cover", zero(model));
  const mask = Object.assign(document.createElement("img"), { className: "mask", alt: "", hidden: true });
  if (model.answers === "mask") step.find("img.view").after(mask);
  bars.classList.toggle("coloured", model.answers === "mask");
  const write = model.answers === "numbers" ? (value) => number(value, 3) : percent;
  let [picture, answers, before, now, timer, asked] = [null, null, null, null, 0, 0];

  clear.addEventListener("click", () => {
    hidden.clear();
    change();
    grid.cells[grid.current].focus();
  });

  function toggle(place) {
    if (!hidden.delete(place)) hidden.add(place);
    change();
  }

  function change() {
    grid.cells.forEach((cell, place) => cell.classList.toggle("covered", hidden.has(place)));
    clear.disabled = !hidden.size;
    clearTimeout(timer);
    timer = setTimeout(load, hidden.size ? PAUSE : 0);
  }

  async function load() {
    const mine = ++asked;
    try {
      step.busy(true);
      const path = `v1/predict?top=${Math.min(MANY, model.num_classes)}`;
      const [first] = (await answers.get(path)).predictions;
      const [found] = hidden.size ? (await ask(path, await covered(picture, hidden, rows, columns, model))).predictions : [first];
      if (mine !== asked) return;
      [before, now] = [listed(first), listed(found)];
      if (found.mask) Object.assign(mask, { src: `data:image/png;base64,${found.mask}`, hidden: false });
      draw();
    } catch (error) {
      if (mine === asked) step.fail(error);
    } finally {
      if (mine === asked) step.busy(false);
    }
  }

  function draw() {
    const was = new Map(before.map(({ index, probability }) => [index, probability]));
    const shown = now.slice(0, TOP);
    while (bars.children.length > shown.length) bars.lastChild.remove();
    while (bars.children.length < shown.length) bars.append(line());
    shown.forEach(({ label, index, probability }, k) => {
      const [name, share, bar] = bars.children[k].children;
      name.textContent = label;
      if (model.answers === "mask") name.style.setProperty("--class", classColour(model.labels ? model.labels.indexOf(label) : Number(label.slice("class ".length))));
      share.textContent = write(probability);
      bars.children[k].dataset.probability = probability;
      bar.hidden = model.answers === "numbers"; // they are no shares of anything
      bar.firstChild.style.transform = `scaleX(${probability})`;
      bar.lastChild.style.left = `${100 * (was.get(index) ?? 0)}%`;
      bar.lastChild.hidden = !hidden.size;
    });
    const [{ label, probability, index }] = shown;
    const told = { label, share: write(probability), count: number(hidden.size), was: write(was.get(index) ?? 0) };
    step.note(say(hidden.size ? "answer.covered" : "answer.note", told));
  }

  function line() {
    const item = document.createElement("li");
    const bar = document.createElement("div");
    bar.className = "bar";
    bar.append(document.createElement("i"), document.createElement("b"));
    item.append(document.createElement("span"), document.createElement("span"), bar);
    return item;
  }

  return {
    show(given, given_answers) {
      [picture, answers] = [given, given_answers];
      hidden.clear();
      change();
    },
    render() {
      grid.mark(state.patch);
    },
    name() {
      grid.name();
      document.getElementById("answer-text").textContent = say(`answer.text.${model.answers === "classes" ? model.reads : model.answers}`);
      if (now) draw();
    },
  };
}
