// The explorer: one picture through the model, in six steps.

import { openPicture } from "./picture.js";
import { Answers, ask, fetchFile, useToken } from "./service.js";
import { on, set, state } from "./state.js";
import { answer } from "./steps/answer.js";
import { attention } from "./steps/attention.js";
import { cut } from "./steps/cut.js";
import { embed } from "./steps/embed.js";
import { position } from "./steps/position.js";
import { comparable, tokens } from "./steps/tokens.js";
import { explain, number, say, translate } from "./words.js";

const element = (id) => document.getElementById(id);
const PIXELATED = 64; // pixels: smaller pictures are shown with theirs
const PLACES = 14; // a side of the grid where the model has none

let model = null;
let steps = [];
let picture = null;
let answers = null;
let retry = start;
let failed = null;
let given = 0; // how many pictures were
let places = null;

async function start() {
  try {
    model = await ask("v1/model");
    element("token").hidden = true;
    const learned = ask("v1/learned");
    places = placesOf(model);
    document.body.classList.toggle("pixelated", Math.min(...model.preprocess.size) < PIXELATED);
    document.body.style.setProperty("--ratio", `${places.width} / ${places.height}`);
    steps = [cut(model), tokens(model, places), attention(model), answer(model, places)];
    element("model-name").textContent = model.name;
    speak();
    draw();
    await Promise.all([showFirst(), learned.then(addLearned)]);
  } catch (error) {
    fail(error, start);
  }
}

/** The steps that need what the model learned, which takes the service a moment when it is first asked. */
function addLearned(learned) {
  const late = [embed(model, learned), position(learned, places)];
  steps.push(...late);
  for (const step of late) {
    if (picture) step.show?.(picture, answers);
    step.name?.();
    step.render?.();
  }
  translate();
}

/** The grid that a visitor chooses from: what is cut or attended to, or else the finest that can be compared. */
function placesOf({ patch, reads, grid, preprocess, token_grids: grids }) {
  const finest = comparable(model).map((layer) => grids[layer])[0] ?? [PLACES, PLACES];
  const [rows, columns] = patch || reads ? grid : finest;
  const [height, width] = patch ? [patch[0] * rows, patch[1] * columns] : preprocess.size;
  return { rows, columns, height, width };
}

/** The picture that the page was opened with (vitlab explore IMAGE), or else the sample. */
async function showFirst() {
  if (new URLSearchParams(location.search).has("picture")) await show(await fetchFile("picture"));
  else await showSample();
}

async function showSample() {
  const digits = model.labels?.every((label) => /^\d$/.test(label));
  await show(await fetchFile(digits ? "digit.png" : "sample.jpg"));
}

/** A file through all steps. */
async function show(file) {
  if (!model) return;
  element("spoken").textContent = say("picture.busy");
  const mine = ++given;
  try {
    const next = await openPicture(file, model);
    if (mine !== given) return; // another was given meanwhile
    answers?.drop();
    if (picture) URL.revokeObjectURL(picture.url);
    picture = next;
    answers = new Answers(picture.body);
    element("error").hidden = true;
    element("copied").hidden = !picture.copied;
    for (const view of document.querySelectorAll("img.view")) {
      view.src = picture.url;
      view.hidden = false;
    }
    for (const step of steps) step.show?.(picture, answers);
    draw();
    if (model.num_classes) await answers.get(`v1/predict?top=${Math.min(1000, model.num_classes)}`);
    document.body.dataset.shown = Number(document.body.dataset.shown ?? 0) + 1;
    element("spoken").textContent = say("picture.done");
  } catch (error) {
    fail(error, () => show(file));
  }
}

function fail(error, again) {
  if (error.name === "AbortError") return;
  if (!error.code) throw error; // a defect of the page: for the console
  [retry, failed] = [again, error];
  element("error-text").textContent = explain(error);
  element("error").hidden = false;
  if (error.code === "unauthorized") element("token").hidden = false;
}

function draw() {
  const { rows, columns } = places;
  const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  state.patch = Math.min(state.patch ?? middle, rows * columns - 1);
  for (const step of steps) step.render?.();
}

/** All words in the chosen language. */
function speak() {
  translate();
  for (const button of document.querySelectorAll("[data-lang]")) {
    button.setAttribute("aria-pressed", button.dataset.lang === state.lang);
  }
  if (failed) element("error-text").textContent = explain(failed);
  if (!model) return;
  for (const step of steps) step.name?.();
  const [height, width] = model.preprocess.size;
  const facts = [
    say("model.parameters", { count: short(model.parameters) }),
    say("model.size", { width: number(width), height: number(height) }),
  ];
  if (model.patch) facts.push(say("model.patches", { rows: model.grid[0], columns: model.grid[1], size: model.patch.join(" × ") }));
  if (model.attention) {
    facts.push(say("model.layers", { count: model.attention.layers }), say("model.heads", { count: Math.max(...model.attention.heads) }));
  }
  if (model.num_classes && model.answers !== "numbers") facts.push(say("model.classes", { count: number(model.num_classes) }));
  element("facts").replaceChildren(
    ...facts.map((fact) => Object.assign(document.createElement("li"), { textContent: fact })),
  );
}

function short(count) {
  return new Intl.NumberFormat(state.lang, { notation: "compact", maximumSignificantDigits: 3 }).format(count);
}

function firstPicture(items) {
  return [...items].find((item) => item.type.startsWith("image/"));
}

element("choose").addEventListener("click", () => element("file").click());
element("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) show(file);
  event.target.value = ""; // the same file may be chosen again
});
element("sample").addEventListener("click", () => showSample().catch((error) => fail(error, showSample)));
element("again").addEventListener("click", () => {
  element("error").hidden = true;
  failed = null;
  retry();
});
element("token").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(element("token-text").value.trim());
  element("error").hidden = true;
  retry();
});
for (const button of document.querySelectorAll("[data-lang]")) {
  button.addEventListener("click", () => set({ lang: button.dataset.lang }));
}
for (const link of document.querySelectorAll("[data-step]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault(); // what follows # in the address is the state
    element(link.dataset.step).scrollIntoView({ block: "start" });
    element(`${link.dataset.step}-title`).focus({ preventScroll: true });
  });
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  element("steps").scrollIntoView();
  element("steps").focus({ preventScroll: true });
});

addEventListener("paste", (event) => {
  const file = firstPicture(event.clipboardData?.files ?? []);
  if (file) show(file);
});
let inside = 0; // dragging enters and leaves every element on its way
addEventListener("dragenter", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  inside += 1;
  document.body.classList.add("dragging");
});
addEventListener("dragleave", () => {
  inside = Math.max(0, inside - 1);
  if (!inside) document.body.classList.remove("dragging");
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  inside = 0;
  document.body.classList.remove("dragging");
  const file = firstPicture(event.dataTransfer.files) ?? event.dataTransfer.files[0];
  if (file) show(file);
});

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const link = document.querySelector(`[data-step="${target.id}"]`);
      if (isIntersecting) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
    }
  },
  { rootMargin: "-45% 0px -50% 0px" },
);
for (const section of document.querySelectorAll(".step")) watcher.observe(section);

let frame = 0;
on(["patch", "after", "layer", "head", "from"], () => {
  cancelAnimationFrame(frame);
  if (places) frame = requestAnimationFrame(draw);
});
on(["lang"], () => {
  speak();
  if (places) draw();
});

speak();
start();
