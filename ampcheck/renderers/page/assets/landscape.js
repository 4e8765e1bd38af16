/* The landscape that moves: every layer by powers of two, the format's range as a band over it. */

const TAIL = 1e-4;
const HEAD = 22;
const FOOT = 22;
const TALLEST = 440;
const PHASES = ["forward", "backward"];
const FAINTEST = -5;
const ZONES = ["underflowed", "subnormal", "normal", "overflow"];
const ZONE_WORDS = {
  underflowed: ["underflow", "under"],
  subnormal: ["subnormal", "subn."],
  normal: ["full precision", "normal", "full"],
  overflow: ["overflow", "over", "inf"],
};
const MONO = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const SANS = "11px system-ui, sans-serif";

/** The layers with something to show, in order of their first result in the forward. */
const layers = [...new Set([...sites].sort((a, b) => PHASES.indexOf(a.phase) - PHASES.indexOf(b.phase)).map((site) => site.module))]
  .filter((module) => module.sites.some((site) => site.counted && site.nonzero));
const panels = [];
const HINT = document.getElementById("pointed")?.textContent;

/** Return the counts of several histograms together. */
function merged(parts) {
  const filled = parts.filter((part) => part.counts.length);
  if (!filled.length) return { lowest: 0, counts: [], nonzero: 0 };
  const lowest = Math.min(...filled.map((part) => part.lowest));
  const end = Math.max(...filled.map((part) => part.lowest + part.counts.length));
  const counts = new Array(end - lowest).fill(0);
  for (const part of filled) part.counts.forEach((number, i) => (counts[part.lowest - lowest + i] += number));
  return { lowest, counts, nonzero: counts.reduce((sum, number) => sum + number, 0) };
}

/** Return the exponents shown: all but the tails, and every place that the format's edges can take. */
function shownRange(phase, whole) {
  let [low, high] = [whole.lowest, whole.lowest + whole.counts.length - 1];
  const few = whole.nonzero * TAIL;
  for (let seen = whole.counts[0]; seen <= few; seen += whole.counts[low - whole.lowest]) low += 1;
  for (let seen = whole.counts.at(-1); seen <= few; seen += whole.counts[high - whole.lowest]) high -= 1;
  if (format.max - format.underflow > 48) return [low - 2, high + 2];
  const lift = phase === "backward" ? saved.scales : [0, 0];
  return [Math.min(low, format.underflow - lift[1] - 6), Math.max(high, format.max - lift[0] + 4)];
}

/** Return where a panel's cells are dark, from 0 to 1, and the range of its columns. */
function panelOf(phase) {
  const figure = document.getElementById(`panel-${phase}`);
  const rows = layers.map((module) => merged(held(phase, module.sites)));
  const [low, high] = shownRange(phase, merged(rows));
  const columns = high - low + 1;
  const dark = new Float32Array(columns * rows.length);
  rows.forEach((row, y) => {
    const counts = new Array(columns).fill(0);
    row.counts.forEach((number, i) => (counts[Math.max(0, Math.min(columns - 1, row.lowest + i - low))] += number));
    counts.forEach((number, x) => {
      if (number) dark[y * columns + x] = Math.max(0.12, 1 - Math.log10(number / row.nonzero) / FAINTEST);
    });
  });
  const about = figure.querySelector("svg").getAttribute("aria-label");
  const label = `${about}. Arrow keys choose a layer, Enter shows it.`;
  const canvas = made("canvas", { tabindex: "0", role: "application", "aria-label": label, class: "live" });
  figure.append(canvas);
  const cells = made("canvas");
  [cells.width, cells.height] = [columns, rows.length];
  return { phase, figure, canvas, cells, dark, low, high, columns, rows };
}

/** Return runs of layers that share the beginning of their path, as long as there is room for their names. */
function groupsOf(height) {
  const most = Math.max(1, Math.floor(height / 13));
  const names = layers.map((module) => module.path.split("."));
  const cut = (depth) => {
    const runs = [];
    names.forEach((parts, at) => {
      const label = parts.slice(0, depth).join(".");
      if (runs.length && runs.at(-1).label === label) runs.at(-1).end = at + 1;
      else runs.push({ label, start: at, end: at + 1 });
    });
    return runs;
  };
  const deepest = Math.max(...names.map((parts) => parts.length));
  let best = cut(1);
  for (let depth = 2; depth <= deepest && cut(depth).length <= most; depth += 1) best = cut(depth);
  return best;
}

/** Work out every panel's place on the page. */
function arrange() {
  const box = document.querySelector(".panels");
  const width = box.clientWidth;
  const stacked = width < 760;
  const rowHeight = Math.max(1, Math.min(15, Math.floor(TALLEST / layers.length)));
  const height = rowHeight * layers.length;
  const groups = rowHeight > 11 ? layers.map((m, i) => ({ label: m.path, start: i, end: i + 1 })) : groupsOf(height);
  const label = Math.min(stacked ? width * 0.3 : 210, 16 + 6.7 * Math.max(...groups.map((group) => group.label.length)));
  const share = stacked ? 16 : 74;
  const every = panels.reduce((sum, panel) => sum + panel.columns, 0);
  const gap = 36 * (panels.length - 1);
  panels.forEach((panel, index) => {
    const named = stacked || index === 0;
    const last = !stacked && index === panels.length - 1;
    const step = stacked ? (width - label - share) / panel.columns : (width - label - share - gap) / every;
    const left = named ? label : 0;
    Object.assign(panel, { step, left, named, last, rowHeight, height, groups });
    sized(panel.canvas, left + step * panel.columns + (last || stacked ? share : 16), HEAD + height + FOOT);
  });
}

function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
}

/** Return the page's colours; the legend has them, in the light or dark of the moment. */
function palette() {
  const colors = {};
  for (const zone of ZONES) {
    const swatch = document.querySelector(`.legend .swatch.${zone}`);
    colors[zone] = getComputedStyle(swatch).backgroundColor.match(/[\d.]+/g).map(Number);
  }
  const style = getComputedStyle(document.querySelector(".legend"));
  return { ...colors, ink: style.color, line: style.borderTopColor, strong: style.outlineColor };
}

/** Draw a panel as things stand. */
function draw(panel, colors) {
  const pen = panel.canvas.getContext("2d");
  const ratio = window.devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  drawZones(pen, panel, colors);
  colorCells(panel, colors);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(panel.cells, panel.left, HEAD, panel.step * panel.columns, panel.height);
  drawAxis(pen, panel, colors);
  drawNames(pen, panel, colors);
  drawMarks(pen, panel, colors);
  drawPointed(pen, panel, colors);
}

function colorCells(panel, colors) {
  const { columns, rows, dark, low, phase } = panel;
  const pen = panel.cells.getContext("2d");
  const image = pen.createImageData(columns, rows.length);
  const scale = scaleOf(phase);
  const inks = Array.from({ length: columns }, (_, x) => colors[zoneOf(low + x, format, scale)]);
  for (let at = 0; at < dark.length; at += 1) {
    if (!dark[at]) continue;
    const ink = inks[at % columns];
    image.data.set([ink[0], ink[1], ink[2], 255 * dark[at]], 4 * at);
  }
  pen.putImageData(image, 0, 0);
}

/** Return the zones from left to right: [name, first exponent, end], as far as they are shown. */
function zonesOf(panel) {
  const scale = scaleOf(panel.phase);
  const edges = [-Infinity, format.underflow - 1 - scale, format.min - scale, format.max + 1 - scale, Infinity];
  return ZONES.map((zone, i) => [zone, Math.max(edges[i], panel.low), Math.min(edges[i + 1], panel.high + 1)])
    .filter(([, start, end]) => end > start);
}

function drawZones(pen, panel, colors) {
  pen.font = SANS;
  pen.textAlign = "center";
  for (const [zone, start, end] of zonesOf(panel)) {
    const x = panel.left + (start - panel.low) * panel.step;
    const width = (end - start) * panel.step;
    const [red, green, blue] = colors[zone];
    pen.fillStyle = `rgb(${red} ${green} ${blue} / ${zone === "normal" ? 0.05 : 0.11})`;
    pen.fillRect(x, HEAD, width, panel.height);
    pen.fillStyle = `rgb(${red} ${green} ${blue})`;
    const name = ZONE_WORDS[zone].find((words) => pen.measureText(words).width <= width - 2);
    if (name) pen.fillText(name, x + width / 2, HEAD - 7);
    if (start > panel.low) pen.fillRect(x - 0.5, HEAD - 4, 1, panel.height + 4);
  }
}

function drawAxis(pen, panel, colors) {
  const every = panel.step * 8 > 40 ? 8 : 16;
  pen.fillStyle = colors.ink;
  for (let exponent = Math.ceil(panel.low / every) * every; exponent <= panel.high; exponent += every) {
    const x = panel.left + (exponent - panel.low) * panel.step;
    pen.fillRect(x, HEAD + panel.height, 1, 4);
    if (x > panel.left + 10 && x < panel.left + panel.step * panel.columns - 8) {
      pen.fillText(power(exponent), x, HEAD + panel.height + 17);
    }
  }
}

/** Write the names at the left, and at the right what underflows or overflows in a group of layers. */
function drawNames(pen, panel, colors) {
  let free = 0;
  for (const { label, start, end } of panel.groups) {
    const top = HEAD + start * panel.rowHeight;
    const y = Math.max(top + Math.min(panel.rowHeight, 13) - 3, free);
    if (y > HEAD + panel.height + 6) break;
    if (panel.rowHeight <= 11 && (end - start) * panel.rowHeight >= 8) {
      pen.fillStyle = colors.line;
      pen.fillRect(panel.left, top, panel.step * panel.columns, 1);
    }
    if (y - top > 13 + (end - start) * panel.rowHeight) continue;
    pen.fillStyle = colors.ink;
    if (panel.named) {
      pen.font = MONO;
      pen.textAlign = "right";
      pen.fillText(fitted(label, Math.floor((panel.left - 10) / 6.7)), panel.left - 8, y);
    }
    if (panel.last) drawShare(pen, panel, colors, start, end, y);
    free = y + 12;
  }
}

function drawShare(pen, panel, colors, start, end, y) {
  const among = layers.slice(start, end).flatMap((module) => held(panel.phase, module.sites));
  const whole = among.reduce((sum, site) => sum + site.nonzero, 0);
  const scale = scaleOf(panel.phase);
  const under = summed("underflowed", among, format, scale)[0];
  const over = summed("overflow", among, format, scale)[0];
  if (!under && !over) return;
  pen.font = SANS;
  pen.textAlign = "left";
  const tone = `rgb(${colors[under >= over ? "underflowed" : "overflow"].slice(0, 3).join(" ")})`;
  pen.fillStyle = under + over < 1e-4 * whole ? colors.ink : tone;
  pen.fillText(percent((under + over) / whole), panel.left + panel.step * panel.columns + 18, y);
}

/** Return a path cut in its middle to a number of characters. */
function fitted(path, width) {
  if (path.length <= width) return path;
  const tail = Math.ceil((width - 1) * 0.66);
  return `${path.slice(0, Math.max(0, width - 1 - tail))}…${path.slice(-tail)}`;
}

function drawPointed(pen, panel, colors) {
  pen.strokeStyle = colors.strong;
  for (const module of [chosen.module, chosen.pointed && chosen.pointed.module]) {
    const at = layers.indexOf(module);
    if (at < 0) continue;
    const height = Math.max(panel.rowHeight, 3);
    const y = HEAD + at * panel.rowHeight - (height - panel.rowHeight) / 2;
    pen.strokeRect(panel.left - 0.5, y - 0.5, panel.step * panel.columns + 1, height + 1);
  }
}

/** Mark the layers that findings start in, in the gap beside the panel. */
function drawMarks(pen, panel, colors) {
  pen.fillStyle = `rgb(${colors.underflowed.slice(0, 3).join(" ")})`;
  pen.font = "bold 12px system-ui, sans-serif";
  pen.textAlign = "left";
  for (const [module, phase] of saved.marks) {
    const at = layers.indexOf(modules[module]);
    if (at < 0 || PHASES[phase] !== panel.phase) continue;
    const x = panel.left + panel.step * panel.columns + 3;
    pen.fillText("◂", x, HEAD + (at + 0.5) * panel.rowHeight + 4);
  }
}

/** Put the moving picture where the still one was. */
function startLandscape() {
  const phases = ["forward", "backward"].filter((phase) => document.getElementById(`panel-${phase}`));
  if (!phases.length || !layers.length) return;
  panels.push(...phases.map(panelOf));
  panels.forEach(listen);
  const redraw = () => {
    const colors = palette();
    panels.forEach((panel) => draw(panel, colors));
  };
  const place = () => {
    arrange();
    redraw();
  };
  place();
  let width = Math.round(document.querySelector(".panels").clientWidth);
  new ResizeObserver(([entry]) => {
    if (Math.round(entry.contentRect.width) === width) return;
    width = Math.round(entry.contentRect.width);
    place();
  }).observe(document.querySelector(".panels"));
  watch((changes) => {
    redraw();
    if (changes.has("pointed") || changes.has("scale")) document.getElementById("pointed").textContent = pointedWords();
  });
}
