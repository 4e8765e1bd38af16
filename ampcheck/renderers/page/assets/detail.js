/* One layer in full: the histogram of each of its results, their errors, and the lines behind them. */

const aside = document.getElementById("detail");
let opener = null;

/** Show a layer's details; `from` gets the focus back when they are closed. */
function select(module, from) {
  opener = from || opener;
  chosen.module = module;
  remember(`#m${module.index}`);
  changed("module");
}

/** Keep in the address what is shown, where the page may. */
function remember(hash) {
  try {
    history.replaceState(null, "", hash);
  } catch {
    /* a frame without an origin of its own may not */
  }
}

function closeDetail() {
  chosen.module = null;
  aside.hidden = true;
  remember("#layers");
  changed("module");
  opener?.focus();
}

/** Return one result as an item of the list: what it is, its histogram, its figures. */
function item(site, range) {
  const place = site.file ? made("code", { class: "place" }, `${site.file}:${site.line}`) : "";
  const about = made("span", { class: "muted" }, `${site.phase} · ${site.slot} · `, made("b", {}, site.dtype));
  const head = made("h3", {}, made("code", {}, site.op), " ", about, " ", place);
  return made("li", {}, head, site.nonzero ? histogram(site, range) : "", made("p", { class: "muted" }, figures(site)));
}

/** Return from which to which power of two the results of a layer reach, for one axis under all of them. */
function rangeOf(parts) {
  const filled = parts.filter((site) => site.nonzero);
  const low = Math.min(...filled.map((site) => site.lowest));
  const high = Math.max(...filled.map((site) => site.lowest + site.counts.length - 1));
  return [low, Math.max(high, low + 15)];
}

/** Return a histogram as bars, each in the colour of what becomes of it. */
function histogram(site, [low, high]) {
  const [width, height] = [8, 48];
  const scale = scaleOf(site.phase);
  const top = Math.max(...site.counts);
  const bars = [];
  for (let exponent = low; exponent <= high; exponent += 1) {
    const zone = site.counted ? zoneOf(exponent, format, scale) : "other";
    const x = (exponent - low) * width;
    if (site.counted && zone !== "normal") bars.push(made("rect", { class: `ground ${zone}`, x, y: 0, width, height }));
    const number = site.counts[exponent - site.lowest];
    if (!number) continue;
    const tall = Math.max(1.5, (height * number) / top);
    bars.push(made("rect", { class: `bar ${zone}`, x, y: height - tall, width: width - 1, height: tall }));
  }
  const words = `${site.phase} ${site.op}: magnitudes from ${power(site.lowest)} to ${power(site.lowest + site.counts.length - 1)}`;
  const drawn = made("svg", {
    viewBox: `0 0 ${(high - low + 1) * width} ${height}`, preserveAspectRatio: "none",
    role: "img", "aria-label": words, class: "histogram",
  }, ...bars);
  const ends = [low, high].map((exponent) => made("span", {}, power(exponent)));
  return made("div", {}, drawn, made("div", { class: "ends muted" }, ...ends));
}

/** Return what is known of a result, in words. */
function figures(site) {
  const words = site.nonzero ? [`${count(site.nonzero)} non-zero`, `largest ${magnitude(site.amax)}`] : [];
  if (site.zeros) words.push(`${count(site.zeros)} zero`);
  if (site.infs) words.push(`${count(site.infs)} inf`);
  if (site.nans) words.push(`${count(site.nans)} NaN`);
  if (site.own) words.push(`in the ${saved.precision} run`);
  if (site.error !== null) words.push(`error ${percent(site.error)}`);
  const became = { zero: site.lowZeros - site.zeros, inf: site.lowInfs - site.infs, NaN: site.lowNans - site.nans };
  for (const [what, number] of Object.entries(became)) {
    if (number > 0) words.push(`measured: ${count(number)} became ${what}`);
  }
  if (site.counted && site.phase === "backward") {
    const [away, over] = ["underflowed", "overflow"].map((kind) => span(summed(kind, [site], format, chosen.scale)));
    words.push(`at ${power(chosen.scale)}: underflow ${away}, overflow ${over}`);
  }
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
  const note = made("p", { class: "muted note" }, "Histograms are those of the FP32 run, without the loss scale; casts are as they were.");
  const range = rangeOf(parts);
  const list = made("ol", {}, ...parts.map((site) => item(site, range)));
  const body = parts.length ? [list, note] : [made("p", {}, "No operation of its own was recorded.")];
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
