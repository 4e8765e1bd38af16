/* What the page does besides: themes, copying, links to a layer. */

const root = document.documentElement;
const THEMES = ["system", "light", "dark"];

/** Show a theme and remember it where that is possible. */
function setTheme(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("ampcheck-theme", theme);
  } catch {
    /* a page from a file or in a sandbox may not store anything */
  }
  changed("theme");
}

function startTheme() {
  let kept = null;
  try {
    kept = localStorage.getItem("ampcheck-theme");
  } catch {
    /* as above */
  }
  const button = document.getElementById("theme");
  if (THEMES.includes(kept)) setTheme(kept);
  button.addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed("theme"));
}

/** Copy the patch; where the clipboard is out of reach, select it, so that one key does. */
async function copyPatch(button) {
  const patch = document.getElementById("patch");
  try {
    await navigator.clipboard.writeText(`${patch.textContent}\n`);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(patch);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

function followHash() {
  const module = modules[Number(/^#m(\d+)$/.exec(location.hash)?.[1] ?? -1)];
  if (module) select(module);
}

root.classList.add("js");
startTheme();
startScale();
startLandscape();
startTree();
startDetail();
document.getElementById("copy")?.addEventListener("click", (event) => copyPatch(event.target));
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#m"]');
  if (!link) return;
  event.preventDefault();
  select(modules[Number(link.hash.slice(2))], link);
});
addEventListener("hashchange", followHash);
followHash();
