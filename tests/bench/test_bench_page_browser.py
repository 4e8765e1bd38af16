"""The page of a bench in a real Chromium: light and dark, on a desk and on a phone."""

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("name", PAGES)
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
    """12 px of text in a drawing of 720 units must not shrink below 9."""
    page = show(PAGES["gpt"](), viewport=PHONE).page
    widths = page.evaluate(
        "[...document.querySelectorAll('svg')].map(chart => chart.getBoundingClientRect().width)"
    )
    assert len(widths) >= 6
    assert all(12 * width / 720 >= 9 for width in widths)


def test_light_and_dark_differ_and_keep_their_marks_apart(show):
    colours = {}
    for scheme in ("light", "dark"):
        page = show(PAGES["classic"](), color_scheme=scheme).page
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        bars = page.evaluate(
            "[...document.querySelectorAll('rect[class^=role]')].map(bar => getComputedStyle(bar).fill)"
        )
        assert paper not in bars
        assert len(set(bars)) >= 6
        colours[scheme] = (paper, tuple(bars))
    assert colours["light"][0] != colours["dark"][0]
    assert not set(colours["light"][1]) & set(colours["dark"][1])
