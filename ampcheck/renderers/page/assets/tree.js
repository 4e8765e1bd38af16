/* The table of the layers: folded, searched, sorted. */

const table = document.getElementById("layers-table");
const rows = modules.map((module) => document.getElementById(`m${module.index}`));
/** What a column sorts by: a place among a module's values; texts are sorted as they are written. */
const VALUES = { state: 0, forward: 1, backward: 2, over: 3, casts: 4, error: 5, activation: 6, gradient: 7 };
/** Whose troublesome end is the small one. */
const SMALL_FIRST = new Set(["gradient", "kind", "dtype", "path"]);
const view = { key: "path", reversed: false, words: [], only: false, folded: new Set() };
const searched = modules.map((module, index) => {
  const ops = module.sites.flatMap((site) => [site.op, `${site.file}:${site.line}`]);
  return [module.path, rows[index].textContent, ...new Set(ops)].join(" ").toLowerCase();
});

function valueOf(module, key) {
  if (key in VALUES) return module.values ? module.values[VALUES[key]] : null;
  return rows[module.index].querySelector(`.c-${key}`).textContent;
}

/** Return the modules in the order asked for; those without a value come last. */
function ordered() {
  if (view.key === "path") return view.reversed ? [...modules].reverse() : modules;
  const keyed = modules.map((module) => [valueOf(module, view.key), module]);
  const sign = (SMALL_FIRST.has(view.key) ? 1 : -1) * (view.reversed ? -1 : 1);
  const last = (value) => value === null || value === "";
  keyed.sort(([a, first], [b, second]) => {
    if (last(a) || last(b)) return last(a) - last(b) || first.index - second.index;
    return (a < b ? -sign : a > b ? sign : 0) || first.index - second.index;
  });
  return keyed.map(([, module]) => module);
}

/** Return whether a module is shown at its place. */
function isShown(module, flat, inside) {
  if (!flat) return !inside;
  if (!module.values && !view.words.length) return false;
  if (view.only && !rows[module.index].classList.contains("troubled")) return false;
  return view.words.every((word) => searched[module.index].includes(word));
}

/** Show the rows as they are asked for. */
function showRows(sorted) {
  const flat = view.key !== "path" || view.reversed || view.words.length > 0 || view.only;
  let number = 0;
  let end = 0;
  for (const module of modules) {
    const inside = module.index < end;
    const shown = isShown(module, flat, inside);
    rows[module.index].hidden = !shown;
    number += shown;
    if (!inside && view.folded.has(module.index)) end = module.end;
  }
  if (sorted) table.tBodies[0].replaceChildren(...ordered().map((module) => rows[module.index]));
  if (flat !== table.classList.contains("flat")) {
    table.classList.toggle("flat", flat);
    rows.forEach((row, i) => (row.querySelector(".open").textContent = flat ? modules[i].path : lastName(modules[i])));
  }
  document.getElementById("matches").textContent = flat ? `${count(number)} of ${count(modules.length)} modules` : "";
}

function lastName(module) {
  return rows[module.index].querySelector(".open").dataset.name;
}

/** Sort by a column: first the troublesome end, then the other one, then as executed again. */
function sortBy(key) {
  const same = view.key === key;
  if (same && view.reversed) Object.assign(view, { key: "path", reversed: false });
  else Object.assign(view, { key, reversed: same });
  for (const head of table.tHead.rows[0].cells) {
    const up = SMALL_FIRST.has(view.key) !== view.reversed;
    const sorted = head.dataset.key === view.key && (view.key !== "path" || view.reversed);
    if (sorted) head.setAttribute("aria-sort", up ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  showRows(true);
}

function fold(module, button) {
  const folded = !view.folded.has(module.index);
  if (folded) view.folded.add(module.index);
  else view.folded.delete(module.index);
  button.setAttribute("aria-expanded", String(!folded));
  showRows(false);
}

/** Give a row its buttons: one to fold what is inside, one to show the details. */
function equip(row, module) {
  const name = row.querySelector(".name");
  const open = made("button", { type: "button", class: "open name", title: module.path, "data-name": name.textContent }, name.textContent);
  name.replaceWith(open);
  if (module.end > module.index + 1) {
    const button = made("button", { type: "button", class: "fold", "aria-expanded": "true", "aria-label": `Inside of ${module.path}` });
    open.before(button);
  }
}

function startTree() {
  rows.forEach((row, index) => equip(row, modules[index]));
  for (const head of table.tHead.rows[0].cells) {
    const button = made("button", { type: "button", class: "sort" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(head.dataset.key));
  }
  table.tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    const module = modules[Number(row.id.slice(1))];
    const button = event.target.closest("button");
    if (button && button.classList.contains("fold")) fold(module, button);
    else select(module, row.querySelector(".open"));
  });
  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    view.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    showRows(false);
  });
  document.getElementById("only").addEventListener("change", (event) => {
    view.only = event.target.checked;
    showRows(false);
  });
  watch((changes) => {
    if (!changes.has("module")) return;
    table.querySelector("tr.chosen")?.classList.remove("chosen");
    if (chosen.module) rows[chosen.module.index].classList.add("chosen");
  });
}
