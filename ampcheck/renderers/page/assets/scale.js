/* The slider: what underflows and overflows at each loss scale, in figures. */

const gradients = held("backward");
const allGradients = gradients.reduce((sum, site) => sum + site.nonzero, 0);

/** Write the figures of the scale chosen. */
function showScale() {
  const slider = document.getElementById("scale");
  slider.value = chosen.scale;
  slider.setAttribute("aria-valuetext", `2 to the power of ${chosen.scale}`);
  document.getElementById("scale-name").textContent = power(chosen.scale);
  for (const kind of ["underflowed", "subnormal", "overflow"]) {
    const bounds = summed(kind, gradients, format, chosen.scale);
    const box = document.getElementById(`at-${kind}`);
    box.querySelector(".share").textContent = percent(bounds[0] / allGradients);
    box.querySelector(".count").textContent = span(bounds);
    box.classList.toggle("some", bounds[0] > 0);
  }
  const [first, last] = saved.scales;
  const x = (1000 * (chosen.scale - first)) / Math.max(1, last - first);
  document.getElementById("now").setAttribute("d", `M${x} 0V120`);
}

function scaleTo(value) {
  chosen.scale = Number(value);
  changed("scale");
}

/** Let the slider, the buttons and the curve choose the scale. */
function startScale() {
  const slider = document.getElementById("scale");
  if (!slider) return;
  slider.addEventListener("input", () => scaleTo(slider.value));
  document.querySelectorAll(".jump").forEach((button) => {
    button.addEventListener("click", () => scaleTo(button.value));
  });
  const plot = document.querySelector(".plot");
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    const [first, last] = saved.scales;
    scaleTo(first + Math.round(share * (last - first)));
  };
  plot.addEventListener("pointerdown", (event) => {
    plot.setPointerCapture(event.pointerId);
    follow(event);
  });
  plot.addEventListener("pointermove", (event) => event.buttons && follow(event));
  watch((changes) => changes.has("scale") && showScale());
  showScale();
}
