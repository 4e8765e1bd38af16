/* One layer in full: the histogram of each of its results, their errors, and the lines behind them. */

const aside = document.getElementById("detail");
let opener = null;

/** Show a layer's details; `from` gets the focus back when they are closed. */
function select(module, from) {
  opener = from || opener;
  chosen.module = module;
  history.replaceState(null, "", `#m${module.index}`);
  changed("module");
}

function closeDetail() {
  chosen.module = null;
  aside.hidden = true;
  history.replaceState(null, "", "#layers");
  changed("module");
  opener?.focus();
}

/** Return one result as an item of the list: what it is, its histogram, its figures. */
function item(site) {
  const place = site.file ? made("code", { class: "place" }, `${site.file}:${site.line}`) : "";
  const about = made("span", { class: "muted" }, `${site.phase} · ${site.slot} · `, made("b", {}, site.dtype));
  const head = made("h3", {}, made("code", {}, site.op), " ", about, " ", place);
  return made("li", {}, head, site.nonzero ? histogram(site) : "", made("p", { class: "muted" }, figures(site)));
}

/** Return a histogram as bars, each in the colour of what becomes of it. */
function histogram(site) {
  const [width, height] = [8, 48];
  const scale = scaleOf(site.phase);
  const top = Math.max(...site.counts);
  const bars = site.counts.map((number, index) => {
    const exponent = site.lowest + index;
    const tall = number ? Math.max(1.5, (height * number) / top) : 0;
    return made("rect", {
      class: `bar ${site.counted ? zoneOf(exponent, format, scale) : "other"}`,
      x: index * width, y: height - tall, width: width - 1, height: tall,
    });
  });
  const words = `${site.phase} ${site.op}: magnitudes from ${power(site.lowest)} to ${power(site.lowest + bars.length - 1)}`;
  const box = { viewBox: `0 0 ${bars.length * width} ${height}`, role: "img", "aria-label": words, class: "histogram" };
  const axis = [site.lowest, site.lowest + bars.length - 1].map((exponent) => made("span", {}, power(exponent)));
  const drawn = made("svg", { ...box, preserveAspectRatio: "none" }, ...bars);
  drawn.style.width = `min(100%, ${bars.length * width}px)`;
  const under = made("div", { class: "ends muted" }, ...axis);
  under.style.width = `min(100%, ${Math.max(80, bars.length * width)}px)`;
  return made("div", {}, drawn, under);
}

function figures(site) {
  const words = [`${count(site.nonzero)} non-zero`, `largest ${magnitude(site.amax)}`];
  if (site.error !== null) words.push(`error ${percent(site.error)}`);
  if (site.zeros) words.push(`${count(site.zeros)} zero`);
  if (site.counted) {
    const lost = site.lowZeros - site.zeros;
    if (lost > 0) words.push(`measured: ${count(lost)} became zero`);
    const scale = scaleOf(site.phase);
    const at = site.phase === "backward" ? `at ${power(scale)}` : "without a scale";
    words.push(`${at}: ${span(summed("flushed", [site], format, scale))} lost`);
    words.push(`${span(summed("overflow", [site], format, scale))} overflow`);
  }
  if (site.infs) words.push(`${count(site.infs)} inf`);
  if (site.nans) words.push(`${count(site.nans)} NaN`);
  return words.join(" · ");
}

/** Return a button that goes to the layer before or after. */
function stepButton(word, step) {
  const among = modules.filter((module) => module.sites.length);
  const next = among[among.indexOf(chosen.module) + step];
  const button = made("button", { type: "button" }, word);
  button.disabled = !next;
  button.addEventListener("click", () => select(next));
  return button;
}

/** Write the details of the layer chosen, the forward before the backward. */
function showDetail() {
  const module = chosen.module;
  const close = made("button", { type: "button", class: "close", "aria-label": "Close" }, "✕");
  close.addEventListener("click", closeDetail);
  const bar = made("div", { class: "bar" }, stepButton("Previous", -1), stepButton("Next", 1), close);
  const title = made("h2", { id: "detail-title", tabindex: "-1" }, module.path);
  const parts = ["forward", "backward"].flatMap((phase) => module.sites.filter((site) => site.phase === phase));
  const cells = ["state", "dtype", "casts"].map((key) => {
    const text = rows[module.index].querySelector(`.c-${key}`).textContent;
    return text && text !== NONE ? `${key === "casts" ? "casts " : ""}${text}` : "";
  });
  const about = [module.kind, ...cells].filter(Boolean).join(" · ");
  const note = parts.some((site) => !site.counted) && made("p", { class: "muted note" },
    `Results held in ${saved.precision} are shown as the FP32 run has them, the others as they were; all without the loss scale.`);
  const list = made("ol", {}, ...parts.map(item));
  const body = parts.length ? [list, note || ""] : [made("p", {}, "No operation of its own was recorded.")];
  aside.replaceChildren(bar, title, made("p", { class: "muted" }, about), ...body);
}

function startDetail() {
  watch((changes) => {
    if (!chosen.module || !(changes.has("module") || changes.has("scale"))) return;
    const at = aside.scrollTop;
    showDetail();
    aside.hidden = false;
    if (changes.has("module")) document.getElementById("detail-title").focus({ preventScroll: true });
    aside.scrollTop = changes.has("module") ? 0 : at;
  });
  addEventListener("keydown", (event) => event.key === "Escape" && chosen.module && closeDetail());
}
