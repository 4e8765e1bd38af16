"""The HTML report in a real Chromium: what its script computes, what a reader does with it, and that it is calm."""

import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from statistics import median

import pytest
from browser import Opened, launched, opener
from builders import Layer, repeated, report
from examples import NASTY, REPORTS, clean, forward_overflow, gradient_underflow, many_layers, planned

from ampcheck.diagnose.tables import layer_rows, scale_curve
from ampcheck.renderers import html
from ampcheck.renderers.page.scales import span
from ampcheck.values.report import Report, low_tensors
from ampcheck.values.stats import HUGE_EXPONENT, TINY_EXPONENT, Bounds, TensorStats
from ampcheck.values.trace import Phase
from ampcheck.values.wording import percent

SCALES = (0, 3, 10, 16, 21, 24)
HOSTILE = (
    *NASTY,
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "<!--",
    "]]>",
    "\u2028",
    "javascript:1",
)


#: What the policy must refuse, and what it said to that.
TRESPASS = """async () => {
  const refused = [];
  document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
  try {
    document.body.append(Object.assign(document.createElement("script"), { textContent: "window.ran = true" }));
  } catch {}
  const style = document.createElement("style");
  style.textContent = "body { display: none }";
  document.head.append(style);
  await fetch("https://example.org/").catch(() => {});
  await new Promise((done) => setTimeout(done, 50));
  return { refused, ran: window.ran === true };
}"""
#: What is said of each layer while a key leads from one to the next.
GO_DOWN = """async (canvas, times) => {
  const told = [];
  for (let time = 0; time <= times; time += 1) {
    if (time) canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    await new Promise(requestAnimationFrame);
    told.push(document.getElementById("pointed").innerText);
  }
  return told;
}"""
#: The time of each frame while the slider goes to and fro, and while rows are sorted and searched.
FRAMES = """async () => {
  const times = [];
  const frame = () => new Promise(requestAnimationFrame);
  const slider = document.getElementById("scale");
  let before = await frame();
  const during = async (act) => {
    act();
    const now = await frame();
    times.push(now - before);
    before = now;
  };
  for (let round = 0; round < 2; round += 1) {
    for (let scale = 0; scale <= 24; scale += 1) {
      await during(() => {
        slider.value = scale;
        slider.dispatchEvent(new Event("input"));
      });
    }
  }
  const search = document.getElementById("search");
  for (const words of ["b", "block.1", "12.block", ""]) {
    await during(() => {
      search.value = words;
      search.dispatchEvent(new Event("input"));
    });
  }
  for (const key of ["error", "error", "backward", "path"]) {
    await during(() => document.querySelector(`th[data-key=${key}] button`).click());
  }
  return times;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with launched() as started:
        yield started


@pytest.fixture
def show(browser: object, tmp_path: object) -> Iterator[Callable[..., Opened]]:
    yield from opener(browser, tmp_path)


def settle(page: object) -> None:
    """Wait for two frames, so that what was asked for has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def frames(page: object) -> list[float]:
    """Return the times of the frames while a page is used."""
    page.bring_to_front()
    return page.evaluate(FRAMES)


def slide(page: object, scale: int) -> None:
    page.locator("#scale").fill(str(scale))
    settle(page)


def readout(page: object) -> list[tuple[str, str]]:
    boxes = [page.locator(f"#at-{zone}") for zone in ("underflowed", "subnormal", "overflow")]
    return [(box.locator(".share").inner_text(), box.locator(".count").inner_text()) for box in boxes]


def edges() -> Report:
    """Return a report of histograms at every edge: unknown tiny and huge exponents, ties, top binades, few elements."""
    draw = random.Random(7)
    made = report([Layer(f"n{index}", "Edge") for index in range(48)])
    changed = {site: stats for site, stats in made.reference.sites.items() if site.phase is Phase.FORWARD}
    for site in made.reference.sites:
        if site.phase is Phase.BACKWARD:
            low = draw.choice([TINY_EXPONENT, -60, -40, -30, -26, -9])
            high = draw.choice([low, low + 1, -20, -9, -5, 0, 14, 15, 127, HUGE_EXPONENT])
            spots = [low, max(low, high), *(draw.randint(low, max(low, high)) for _ in range(3))]
            counts = {spot: draw.choice([1, 1, 2, 5, 40]) for spot in spots}
            top = 2.0 ** max(counts)
            amax = draw.choice([top, top * 1.5, top * (2 - 2**-11), math.nextafter(2 * top, 0)])
            changed[site] = TensorStats.from_counts(counts, amax=amax, zeros=draw.randint(0, 3))
    return replace(made, reference=replace(made.reference, sites=changed), log2_scale=0)


WITNESSED = {"edges": edges, "many": many_layers, "underflow": gradient_underflow, "bf16": REPORTS["bf16"]}


@pytest.mark.parametrize("name", WITNESSED)
def test_the_slider_shows_what_python_counts(show, name):
    made = WITNESSED[name]()
    opened = show(html.render(made))
    for point in scale_curve(made, SCALES):
        slide(opened.page, point.log2_scale)
        assert opened.page.locator("#scale-name").inner_text() == f"2^{point.log2_scale}"
        assert readout(opened.page) == [
            (percent(bounds.low / point.nonzero), span(bounds))
            for bounds in (point.underflowed, point.subnormal, point.overflowed)
        ]
    assert opened.trouble == []


@pytest.mark.parametrize(
    ("name", "scales"), [("edges", (0, 10, 17, 24)), ("many", (17,))], ids=["edges", "many"]
)
def test_every_layer_shows_what_python_counts_at_the_scale_chosen(show, name, scales):
    made = WITNESSED[name]()
    layers: dict[str, list[TensorStats]] = {}
    for site, stats in low_tensors(made, Phase.BACKWARD).items():
        layers.setdefault(site.module, []).append(stats)
    opened = show(html.render(made))
    canvas = opened.page.locator("#panel-backward canvas")
    for scale in scales:
        slide(opened.page, scale)
        canvas.press("Home")
        seen = set()
        for words in canvas.evaluate(GO_DOWN, len(layers) - 1):
            module, *_, under, over = words.split(" · ")
            seen.add(module)
            tensors = layers[module]
            share = sum(stats.underflowed(made.format, scale).low for stats in tensors) / sum(
                s.nonzero for s in tensors
            )
            overflowed = sum((stats.overflowed(made.format, scale) for stats in tensors), Bounds(0, 0))
            assert (under, over) == (f"underflow {percent(share)}", f"overflow {span(overflowed)}")
        assert seen == set(layers)
    assert opened.trouble == []


def test_the_details_of_a_layer_follow_the_slider_and_name_its_lines(show):
    made = many_layers()
    row = next(row for row in layer_rows(made) if row.module.endswith("1.attention.output"))
    grads = {site: s for site, s in low_tensors(made, Phase.BACKWARD).items() if site.module == row.module}
    (site, stats), page = next(iter(grads.items())), show(html.render(made)).page
    page.locator("#search").fill(row.module)
    page.get_by_role("button", name=row.module, exact=True).click()
    detail = page.locator("#detail")
    assert detail.is_visible()
    assert detail.locator("h2").inner_text() == row.module
    assert f"{site.file}:{site.line}" in detail.inner_text()
    assert detail.locator("svg rect").count() >= len(stats.counts)
    for scale in (0, 12, 24):
        slide(page, scale)
        text = detail.locator("li").last.inner_text()
        assert f"at 2^{scale}: underflow {span(stats.underflowed(made.format, scale))}, " in text
        assert f", overflow {span(stats.overflowed(made.format, scale))}" in text
        assert f"{stats.nonzero:,} non-zero" in text
    page.keyboard.press("Escape")
    settle(page)
    page.locator("#detail h2").wait_for(state="hidden")


def test_details_are_opened_and_left_by_keys_and_the_focus_comes_back(show):
    page = show(html.render(clean())).page
    opener = page.locator("tbody .open").nth(3)
    opener.focus()
    page.keyboard.press("Enter")
    page.locator("#detail h2").wait_for()
    settle(page)
    assert page.evaluate("document.activeElement.id") == "detail-title"
    assert page.url.endswith("#m3")
    page.keyboard.press("Escape")
    settle(page)
    assert not page.locator("#detail").is_visible()
    assert page.evaluate("document.activeElement.closest('tr').id") == "m3"


def test_a_link_to_a_layer_opens_it(show):
    opened = show(html.render(forward_overflow()))
    opened.page.locator(".findings a").first.click()
    settle(opened.page)
    assert opened.page.locator("#detail h2").inner_text() == "blocks.1.attn"
    opened.page.reload()
    settle(opened.page)
    assert opened.page.locator("#detail h2").inner_text() == "blocks.1.attn"


def test_the_band_moves_over_the_gradients_only(show):
    page = show(html.render(many_layers())).page
    drawn = "(phase) => document.querySelector(`#panel-${phase} canvas`).toDataURL()"
    pictures = []
    for scale in (0, 12, 24):
        slide(page, scale)
        pictures.append((page.evaluate(drawn, "forward"), page.evaluate(drawn, "backward")))
    assert len({forward for forward, _ in pictures}) == 1
    assert len({backward for _, backward in pictures}) == 3


def sorted_paths(page: object) -> list[str]:
    return page.locator("#layers-table tbody tr:not([hidden]) .open").all_text_contents()


def test_columns_sort_worst_first_then_the_other_way_then_as_executed(show):
    made = many_layers()
    page = show(html.render(made)).page
    executed = sorted_paths(page)
    rows = [row for row in layer_rows(made) if row.gradients.counts]
    head = page.locator("th[data-key=gradient] button")
    head.click()
    order = [row.module for row in sorted(rows, key=lambda row: row.gradients.lowest)]
    lowest = {row.module: row.gradients.lowest for row in rows}
    assert [lowest[path] for path in sorted_paths(page)] == [lowest[path] for path in order]
    assert page.locator("th[data-key=gradient]").get_attribute("aria-sort") == "ascending"
    head.click()
    assert [lowest[path] for path in sorted_paths(page)] == [lowest[path] for path in order][::-1]
    assert page.locator("th[data-key=gradient]").get_attribute("aria-sort") == "descending"
    head.click()
    assert sorted_paths(page) == executed
    assert page.locator("[aria-sort]").count() == 0


def test_numbers_sort_from_the_worst(show):
    made = gradient_underflow()
    page = show(html.render(made)).page
    values = {
        "state": lambda row: row.trouble,
        "backward": lambda row: row.underflow_backward,
        "over": lambda row: row.overflowed,
        "casts": lambda row: row.casts,
        "error": lambda row: row.error,
    }
    for key, value in values.items():
        page.locator(f"th[data-key={key}] button").click()
        known = {row.module or "(root)": value(row) for row in layer_rows(made)}
        shown = [known[path] for path in sorted_paths(page)]
        assert shown == sorted(known.values(), reverse=True), key


def test_search_finds_modules_classes_and_lines_and_says_how_many(show):
    opened = show(html.render(many_layers()))
    page = opened.page
    for words, wanted in (
        ("layers.3.", 7),
        ("QUERY layers.1", 3),
        ("model.py:102", 12),
        ("nothing like it", 0),
    ):
        page.locator("#search").fill(words)
        assert len(sorted_paths(page)) == wanted, words
        assert page.locator("#matches").inner_text().startswith(f"{wanted} of ")
    page.locator("#search").fill("")
    page.locator("#only").check()
    troubled = {row.module for row in layer_rows(many_layers()) if row.troubled}
    assert set(sorted_paths(page)) == troubled
    assert opened.trouble == []


def test_a_module_folds_and_unfolds_what_is_inside_of_it(show):
    page = show(html.render(clean())).page
    whole = sorted_paths(page)
    fold = page.locator(".fold").first
    fold.click()
    assert fold.get_attribute("aria-expanded") == "false"
    assert len(sorted_paths(page)) == len(whole) - 3
    fold.click()
    assert sorted_paths(page) == whole


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(show, scheme):
    opened = show(html.render(planned()), color_scheme=scheme)
    page, dark = opened.page, scheme == "dark"
    assert (luminance(page) < 0.2) == dark
    names = []
    for _ in range(3):
        page.locator("#theme").click()
        settle(page)
        name = page.locator("#theme").inner_text().removeprefix("Theme: ")
        names.append(name)
        assert (luminance(page) < 0.2) == (name == "dark" or (name == "system" and dark))
    assert names == ["light", "dark", "system"]
    page.locator("#theme").click()
    page.reload()
    assert page.locator("#theme").inner_text() == "Theme: light"
    assert opened.trouble == []


def luminance(page: object) -> float:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3 / 255


def test_the_patch_is_copied_word_for_word(show):
    patch = "--- a/m.py\n+++ b/m.py\n@@ -1 +1,2 @@\n def f(x):\n+    x = x.float()  # wide  <enough>\n"
    made = replace(planned(), patch=patch)
    page = show(html.render(made), permissions=["clipboard-read", "clipboard-write"]).page
    page.locator("#copy").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == patch


@pytest.mark.parametrize("name", REPORTS)
def test_no_report_makes_the_page_complain(show, name):
    opened = show(html.render(REPORTS[name]()))
    settle(opened.page)
    if opened.page.locator("#scale").count():
        slide(opened.page, 5)
    assert opened.page.locator("h1").is_visible()
    assert opened.trouble == []


def test_nothing_hostile_runs_or_becomes_an_element(show):
    made = report([Layer(name, name, name, line=index) for index, name in enumerate(HOSTILE)])
    made = replace(made, target=HOSTILE[5], notes=HOSTILE, patch="</pre><script>alert(1)</script>\n<!--\n")
    opened = show(html.render(made))
    page = opened.page
    page.locator("#search").fill("alert")
    for index in range(page.locator("tbody .open:visible").count()):
        page.locator("tbody .open:visible").nth(index).click()
        settle(page)
    assert page.locator("script").count() == 2
    assert page.locator("img, iframe, object, [onload], [onerror]").count() == 0
    assert "<!--" in page.evaluate("[...document.querySelectorAll('.open')].map((e) => e.title).join(' ')")
    assert opened.trouble == []


def test_the_policy_stops_what_would_be_added(show):
    """The policy is alive: an inline script or style, a request, or markup from a string is refused."""
    page = show(html.render(clean())).page
    tried = page.evaluate(TRESPASS)
    assert {"connect-src", "style-src-elem"} <= set(tried["refused"])
    assert any(name.startswith("script-src") or name.endswith("types-for") for name in tried["refused"])
    assert not tried["ran"]


def test_without_scripts_everything_is_there_to_read(show):
    page = show(html.render(planned()), java_script_enabled=False).page
    for words in ("UNSAFE", "keep blocks.1.attn in FP32", "AMP101", "blocks.3.conv2"):
        assert page.get_by_text(words, exact=False).first.is_visible() or words == "UNSAFE"
    assert page.locator("svg.still").first.is_visible()
    assert page.locator("#layers-table tbody tr").count() == len(layer_rows(planned())) + 6
    for scripted in ("#copy", "#theme", "#scale", "#search"):
        assert not page.locator(scripted).is_visible()
    page.locator("#picture summary").click()
    assert page.locator("#curve-table tbody tr").count() == 25
    assert page.locator("#curve-table").is_visible()


def test_it_works_in_a_frame_that_may_do_nothing_but_run_scripts(show):
    framed = escape(html.render(forward_overflow()))
    opened = show(f'<iframe sandbox="allow-scripts" width="1200" height="800" srcdoc="{framed}"></iframe>')
    frame = opened.page.frame_locator("iframe")
    frame.locator("#theme").click()
    assert frame.locator("#theme").inner_text() == "Theme: light"
    frame.locator("tbody .open").nth(2).click()
    frame.locator("#detail h2").wait_for()
    assert opened.trouble == []


def test_what_was_measured_is_told_apart_from_what_fp32_has(show):
    made = forward_overflow()
    site = next(site for site, stats in made.low.sites.items() if stats.infs)
    page = show(html.render(made)).page
    page.locator("#search").fill(site.module)
    page.locator("tbody .open:visible").first.click()
    before = made.reference.sites[site._replace(dtype="float32")]
    new = made.low.sites[site].infs - before.infs
    assert f"measured: {new:,} became inf" in page.locator("#detail li").first.inner_text()


def test_on_paper_the_still_picture_stands_for_the_moving_one(show):
    page = show(html.render(planned())).page
    assert page.locator("canvas.live").first.is_visible()
    page.emulate_media(media="print")
    assert page.locator("svg.still").first.is_visible()
    for absent in ("canvas.live", "#theme", "#copy", "#search", "#scale"):
        assert not page.locator(absent).first.is_visible()
    assert page.locator(".advice").is_visible() or not planned().advice
    assert len(page.pdf()) > 10_000


def test_the_first_key_leads_past_the_head(show):
    page = show(html.render(clean())).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "report"


@pytest.mark.parametrize("width", [400, 800, 1280])
@pytest.mark.parametrize("name", ["planned", "many_layers"])
def test_the_page_is_never_wider_than_the_window(show, name, width):
    page = show(html.render(REPORTS[name]()), viewport={"width": width, "height": 800}).page
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("name", "scheme"),
    [("planned", "light"), ("planned", "dark"), ("clean", "light"), ("gradient_underflow", "dark")],
)
def test_axe_finds_nothing(show, name, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install -e '.[test]'"
    )
    opened = show(html.render(REPORTS[name]()), color_scheme=scheme, bypass_csp=True)
    opened.page.locator("tbody .open").first.click()
    opened.page.locator("#detail h2").wait_for()
    found = axe.Axe().run(opened.page).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found] == []


def test_a_thousand_layers_stay_smooth(show):
    """Frames while the slider is dragged and the table searched and sorted, beside those of a page of ten layers."""
    made = [
        repeated(report([Layer(f"block.{index}", line=index) for index in range(10)]), n) for n in (1, 100)
    ]
    few, many = [show(html.render(one)).page for one in made]
    pairs = [(frames(few), frames(many)) for _ in range(3)]
    assert all(len(times) >= 50 for pair in pairs for times in pair)
    assert min(median(slow) / median(fast) for fast, slow in pairs) < 3
    assert min(max(slow) / median(fast) for fast, slow in pairs) < 30
