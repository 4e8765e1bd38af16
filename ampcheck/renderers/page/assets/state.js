/* The report's numbers, read once, and what the reader has chosen. */

const saved = JSON.parse(document.getElementById("data").textContent);
const [underflow, min, max, overflowFrom, hasInf] = saved.format;
const format = { underflow, min, max, overflowFrom, hasInf };
const modules = saved.modules.map(([path, kind, depth, end, values], index) => ({
  index, path, kind, depth, end, values: values && values.map(numbered), sites: [],
}));
const sites = saved.sites.map(readSite);
const chosen = { scale: saved.scale, module: null, pointed: null };
const watchers = [];

function numbered(value) {
  return value === "inf" ? Infinity : Number(value);
}

function readSite(fields) {
  const text = (place) => saved.texts[place];
  const [module, phase, op, slot, dtype, file, line, error, source, lowest, counts, amax, ...rest] = fields;
  const [zeros, infs, nans, lowZeros, lowInfs, lowNans] = rest;
  const site = {
    phase: phase ? "backward" : "forward",
    op: text(op), slot: text(slot), dtype: text(dtype), file: text(file), line,
    error: error === null ? null : numbered(error),
    counted: source === 2, own: source === 0, lowest, counts, amax, zeros, infs, nans, lowZeros, lowInfs, lowNans,
    nonzero: counts.reduce((sum, number) => sum + number, 0),
  };
  site.module = modules[module];
  site.module.sites.push(site);
  return site;
}

/** Return the results that a loss scale has to suit, of one phase. */
function held(phase, among = sites) {
  return among.filter((site) => site.counted && site.phase === phase);
}

/** Return the loss scale that a phase's numbers are multiplied by. */
function scaleOf(phase) {
  return phase === "backward" ? chosen.scale : 0;
}

/** Call a function with what has changed, in the next frame, once for all changes until then. */
function watch(callback) {
  watchers.push(callback);
}

let waiting = null;

/** Say that something has changed: the scale, the module, or what is pointed at. */
function changed(what) {
  if (waiting) return void waiting.add(what);
  waiting = new Set([what]);
  requestAnimationFrame(() => {
    const changes = waiting;
    waiting = null;
    watchers.forEach((callback) => callback(changes));
  });
}

/** Return a new element with attributes and children. */
function made(name, attributes = {}, ...children) {
  const drawn = ["svg", "rect", "path", "text"].includes(name);
  const element = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
