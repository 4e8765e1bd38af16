/* Reading the landscape: by pointer, by touch, by keys. */

/** Take what the pointer or the keys are at. */
function pointAt(panel, y, x) {
  const row = Math.floor((y - HEAD) / panel.rowHeight);
  const column = Math.floor((x - panel.left) / panel.step);
  const inside = row >= 0 && row < layers.length;
  const exponent = column >= 0 && column < panel.columns ? panel.low + column : null;
  chosen.pointed = inside ? { module: layers[row], phase: panel.phase, exponent } : null;
  changed("pointed");
}

function pointedWords() {
  const pointed = chosen.pointed;
  if (!pointed) return HINT;
  const among = held(pointed.phase, pointed.module.sites);
  const whole = merged(among);
  const words = [pointed.module.path, pointed.phase];
  if (!whole.nonzero) return [...words, `nothing held in ${saved.precision}`].join(" · ");
  if (pointed.exponent !== null) {
    const number = whole.counts[pointed.exponent - whole.lowest] || 0;
    words.push(`${count(number)} elements (${percent(number / whole.nonzero)}) at ${power(pointed.exponent)}`);
  }
  const scale = scaleOf(pointed.phase);
  words.push(`underflow ${percent(summed("underflowed", among, format, scale)[0] / whole.nonzero)}`);
  words.push(`overflow ${span(summed("overflow", among, format, scale))}`);
  return words.join(" · ");
}

function moveBy(panel, step) {
  const at = chosen.pointed ? layers.indexOf(chosen.pointed.module) + step : 0;
  const row = Math.max(0, Math.min(layers.length - 1, at));
  pointAt(panel, HEAD + (row + 0.5) * panel.rowHeight, -1);
}

function listen(panel) {
  const { canvas } = panel;
  canvas.addEventListener("pointermove", (event) => pointAt(panel, event.offsetY, event.offsetX));
  canvas.addEventListener("pointerleave", () => pointAt(panel, -1, -1));
  canvas.addEventListener("click", (event) => {
    pointAt(panel, event.offsetY, event.offsetX);
    if (chosen.pointed) select(chosen.pointed.module, canvas);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 }[event.key];
    if (step) moveBy(panel, step);
    else if (event.key === "Enter" && chosen.pointed) select(chosen.pointed.module, canvas);
    else return;
    event.preventDefault();
  });
}
