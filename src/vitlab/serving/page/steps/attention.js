// Step 5: what is looked at, by a patch, by the answer, and over all layers.

import { paint as paintCanvas } from "../colours.js";
import { Grid } from "../grid.js";
import { set, state } from "../state.js";
import { number, percent, say } from "../words.js";
import { highest, range, section, showLegend } from "./step.js";

export function attention(model) {
  const step = section("attention");
  if (!model.attention) {
    step.absent();
    return {};
  }
  if (!model.reads) {
    step.absent();
    step.find(".absent").dataset.t = "attention.other";
    return {};
  }
  const [rows, columns] = model.grid;
  const grid = new Grid(step.frame, rows, columns, "attention.grid", { choose: (patch) => set({ patch }) });
  const { layers, heads } = model.attention;
  const tokens = rows * columns + model.num_prefix;
  const every = tokens ** 2 <= model.limits.values; // whether all tokens fit one answer
  const layer = document.getElementById("attention-layer");
  const head = document.getElementById("attention-head");
  const thumbnails = document.getElementById("attention-heads");
  const caption = thumbnails.previousElementSibling;
  const choices = [...step.root.querySelectorAll("input[name=from]")];
  layer.max = layers;
  layer.addEventListener("input", () => set({ layer: Number(layer.value) }));
  head.addEventListener("input", () => set({ head: Number(head.value) }));
  for (const choice of choices) choice.addEventListener("change", () => set({ from: choice.value }));
  choices[0].disabled = !every;
  let [answers, asked] = [null, 0];

  /** From the state to what can be asked of this model. */
  function settle() {
    if (!every && state.from === "patch") state.from = "output";
    state.layer = Math.min(Math.max(state.layer ?? layers, 1), layers);
    state.head = Math.min(Math.max(state.head, 1), heads[state.layer - 1]);
  }

  /** Values over the patches, and the share that goes to other tokens. */
  async function values() {
    const [at, which] = [`layer=${state.layer}&rollout=false`, state.head - 1];
    if (state.from === "rollout") return { over: (await answers.get("v1/attention")).images[0].rollout.flat(), rest: 0 };
    if (state.from === "output") {
      const over = (await answers.get(`v1/attention?${at}`)).images[0].heads[which].flat();
      return { over, rest: Math.max(0, 1 - over.reduce((sum, share) => sum + share, 0)) };
    }
    const [rowsOfHead] = (await answers.get(`v1/attention?${at}&head=${state.head}&rows=all`)).images[0].heads;
    const row = rowsOfHead[model.num_prefix + state.patch];
    const rest = row.slice(0, model.num_prefix).reduce((sum, share) => sum + share, 0);
    return { over: row.slice(model.num_prefix), rest };
  }

  async function load() {
    const mine = ++asked;
    try {
      step.busy(true);
      const { over, rest } = await values();
      if (mine === asked) paint(over, rest);
      if (mine === asked) await showHeads(mine);
    } catch (error) {
      if (mine === asked) step.fail(error);
    } finally {
      if (mine === asked) step.busy(false);
    }
  }

  function paint(over, rest) {
    const { high } = range(over);
    grid.paint(over, { low: 0, high, veil: true });
    showLegend(step.legend, 0, high, percent);
    const [first, second] = highest(over, 2);
    const parts = { first: grid.where(first), value: percent(over[first]) };
    const told = state.from === "patch" ? [say("chosen", { place: grid.where(state.patch) })] : [];
    if (second === undefined) told.push(say("attention.single", parts));
    else told.push(say("attention.note", { ...parts, second: grid.where(second), other: percent(over[second]) }));
    if (model.num_prefix && state.from !== "rollout") told.push(say("attention.prefix", { share: percent(rest) }));
    if (!every) told.push(say("attention.large"));
    step.note(told.join(" "));
  }

  /** A map of each head from where the large one is; from the answer, where all tokens of all heads are too many. */
  async function showHeads(mine) {
    const ofPatch = state.from === "patch" && heads[state.layer - 1] * tokens ** 2 <= model.limits.values;
    const at = `v1/attention?layer=${state.layer}&rollout=false${ofPatch ? "&rows=all" : ""}`;
    const found = (await answers.get(at)).images[0].heads;
    if (mine !== asked) return;
    const maps = found.map((map) => (ofPatch ? map[model.num_prefix + state.patch].slice(model.num_prefix) : map.flat()));
    const words = ofPatch ? "attention.heads.patch" : "attention.heads";
    [caption.dataset.t, caption.textContent] = [words, say(words)];
    thumbnails.dataset.tLabel = words;
    thumbnails.setAttribute("aria-label", say(words));
    while (thumbnails.children.length > maps.length) thumbnails.lastChild.remove();
    while (thumbnails.children.length < maps.length) thumbnails.append(thumbnail(thumbnails.children.length + 1));
    maps.forEach((over, k) => {
      const button = thumbnails.children[k];
      paintCanvas(button.firstChild, over, rows, columns, { low: 0, high: range(over).high });
      button.setAttribute("aria-label", say("attention.one", { number: number(k + 1) }));
      button.setAttribute("aria-pressed", k + 1 === state.head);
    });
  }

  function thumbnail(number) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(document.createElement("canvas"), String(number));
    button.addEventListener("click", () => set({ head: number, from: state.from === "rollout" ? "output" : state.from }));
    return button;
  }

  return {
    show(_, given) {
      answers = given;
    },
    render() {
      settle();
      grid.mark(state.patch);
      layer.value = state.layer;
      head.max = heads[state.layer - 1];
      head.value = state.head;
      const all = state.from === "rollout";
      layer.disabled = head.disabled = all;
      head.disabled ||= heads[state.layer - 1] === 1;
      for (const choice of choices) choice.checked = choice.value === state.from;
      document.getElementById("attention-layer-text").value = `${number(state.layer)} / ${number(layers)}`;
      document.getElementById("attention-head-text").value = `${number(state.head)} / ${number(heads[state.layer - 1])}`;
      document.getElementById("attention-output").textContent = say(`attention.output.${model.reads}`);
      if (answers) load();
    },
    name: () => grid.name(),
  };
}
