// What the visitor has chosen. It lives in the address (#lang=ko&layer=3), so that a view can be kept and shared.

const DEFAULTS = { lang: (navigator.language || "en").startsWith("ko") ? "ko" : "en", patch: null, after: null, layer: null, head: 1, from: "patch" };
const NUMBERS = new Set(["patch", "after", "layer", "head"]);
const ALLOWED = { lang: ["en", "ko"], from: ["patch", "output", "rollout"] };

export const state = { ...DEFAULTS, ...read() };
const listeners = [];
let writing = 0;

/** Call `listener` whenever one of `keys` changes. */
export function on(keys, listener) {
  listeners.push({ keys, listener });
}

/** Change some of the state, tell who listens, and write the address a little later: browsers limit how often. */
export function set(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  if (!changed.length) return;
  Object.assign(state, changes);
  for (const { keys, listener } of listeners) if (keys.some((key) => changed.includes(key))) listener();
  clearTimeout(writing);
  writing = setTimeout(write, 250);
}

function read() {
  const found = {};
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    if (NUMBERS.has(key) && /^\d{1,6}$/.test(text)) found[key] = Number(text);
    else if (ALLOWED[key]?.includes(text)) found[key] = text;
  }
  return found;
}

function write() {
  const parts = Object.keys(DEFAULTS).filter((key) => state[key] !== null);
  history.replaceState(null, "", "#" + parts.map((key) => `${key}=${state[key]}`).join("&"));
}

addEventListener("hashchange", () => set(read()));
