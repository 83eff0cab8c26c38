// Step 6: the probabilities, and how they change when patches are covered.

import { Grid } from "../grid.js";
import { covered, zero } from "../picture.js";
import { ask } from "../service.js";
import { set, state } from "../state.js";
import { number, percent, say } from "../words.js";
import { section } from "./step.js";

const TOP = 5;
const MANY = 1000; // as many as one answer gives, so that classes can be compared before and after
const PAUSE = 120; // milliseconds between the last change and the question

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
      before = (await answers.get(path)).predictions[0].classes;
      const found = hidden.size ? (await ask(path, await covered(picture, hidden, rows, columns, model))).predictions[0].classes : before;
      if (mine !== asked) return;
      now = found;
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
      share.textContent = percent(probability);
      bars.children[k].dataset.probability = probability;
      bar.firstChild.style.transform = `scaleX(${probability})`;
      bar.lastChild.style.left = `${100 * (was.get(index) ?? 0)}%`;
      bar.lastChild.hidden = !hidden.size;
    });
    const [{ label, probability, index }] = shown;
    const told = { label, share: percent(probability), count: number(hidden.size), was: percent(was.get(index) ?? 0) };
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
      document.getElementById("answer-text").textContent = say(`answer.text.${model.reads}`);
      if (now) draw();
    },
  };
}
