"""The page of a bench in a real Chromium: light and dark, on a desk and on a phone."""

import itertools
from pathlib import Path

import pytest
from browser import launched, opener
from test_bench_reports import nasty
from test_bench_result import example

from ampcheck.bench import saved
from ampcheck.bench.compare import compare
from ampcheck.bench.page import to_html

REPORTS = Path(__file__).parents[2] / "reports" / "bench"
PAGES = {
    "example": lambda: to_html(example(), compare(example(), example())),
    "nasty": lambda: to_html(nasty()),
    "gpt": lambda: to_html(saved.read(REPORTS / "gpt.json")),
    "classic": lambda: to_html(saved.read(REPORTS / "classic_small_loss.json")),
}
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with launched() as running:
        yield running


@pytest.fixture
def show(browser, tmp_path):
    yield from opener(browser, tmp_path)


#: Each page on a desk and on a phone, in light and in dark: of two pages the one is light where the other is dark.
SEEN = [
    (name, viewport, "light" if (viewport is DESK) == (name in {"example", "gpt"}) else "dark")
    for name in PAGES
    for viewport in (DESK, PHONE)
]


@pytest.mark.parametrize(("name", "viewport", "scheme"), SEEN)
def test_axe_finds_nothing_and_nothing_sticks_out(show, name, viewport, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: pip install -e '.[test]'"
    )
    opened = show(PAGES[name](), viewport=viewport, color_scheme=scheme, bypass_csp=True)
    found = axe.Axe().run(opened.page).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found] == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert opened.trouble == []


def test_the_whole_table_of_an_ordinary_report_is_seen_on_a_desk(show):
    page = show(PAGES["classic"](), viewport=DESK).page
    cut = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.evaluate(cut) == 0


def test_charts_keep_a_size_that_can_be_read_on_a_phone(show):
    """The text of a drawing must not shrink below 9 px."""
    page = show(PAGES["gpt"](), viewport=PHONE).page
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg')].map(chart => chart.getBoundingClientRect().width / "
        "chart.viewBox.baseVal.width * parseFloat(getComputedStyle(chart.querySelector('text')).fontSize))"
    )
    assert len(sizes) >= 6
    assert all(size >= 9 for size in sizes)


def test_no_text_of_a_chart_lies_on_another_one_or_outside(show):
    page = show(PAGES["gpt"](), viewport=DESK).page
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg')].map(chart => [chart, ...chart.querySelectorAll('text')].map("
        "one => { const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom] }))"
    )
    for chart, *texts in boxes:
        assert all(a[0] >= chart[0] and a[2] <= chart[2] and a[3] <= chart[3] for a in texts)
        pairs = [(a, b) for a, b in itertools.combinations(texts, 2) if a[0] < b[2] and b[0] < a[2]]
        # The boxes of lines are higher than their letters.
        assert all(min(a[3], b[3]) - max(a[1], b[1]) <= 4 for a, b in pairs)


def test_light_and_dark_differ_and_keep_their_marks_apart(show):
    colours = {}
    for scheme in ("light", "dark"):
        page = show(PAGES["classic"](), color_scheme=scheme).page
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        bars = page.evaluate(
            "[...document.querySelectorAll('rect[class*=role]')].map(bar => getComputedStyle(bar).fill)"
        )
        assert paper not in bars
        assert len(set(bars)) >= 6
        colours[scheme] = (paper, tuple(bars))
    assert colours["light"][0] != colours["dark"][0]
    assert not set(colours["light"][1]) & set(colours["dark"][1])
