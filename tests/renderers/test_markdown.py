"""Markdown and SVG: what a parser of the language sees in them, and that names are nothing but names."""

import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from builders import finding
from examples import REPORTS, clean, many_layers
from hostile import NAMES, hostile
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from saved_reports import SAVED, saved

from ampcheck.diagnose.landscape import Zone, landscape
from ampcheck.diagnose.tables import layer_rows, scale_curve
from ampcheck.renderers import markdown, render, summary
from ampcheck.renderers.markup import code, fence, inline, prose, table
from ampcheck.renderers.svg import curve_svg, landscape_svg
from ampcheck.values.findings import Severity
from ampcheck.values.trace import Phase, Site
from ampcheck.values.wording import clean as visible
from ampcheck.values.wording import percent

EVERY = {
    **{name: saved(name) for name in SAVED},
    **{name: make() for name, make in REPORTS.items()},
    "hostile": hostile(),
}
every = pytest.mark.parametrize("made", EVERY.values(), ids=EVERY)
#: The tags that the reports write themselves; everything else has to be text.
OWN_TAGS = re.compile(r"</?details>|</?summary>")
SVG = "{http://www.w3.org/2000/svg}"


def parsed(text):
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def flat(tokens):
    for token in tokens:
        yield token
        yield from flat(token.children or [])


def rows(tokens):
    """Return the texts of the cells of every table row."""
    found, cell = [], None
    for token in tokens:
        if token.type == "tr_open":
            found.append([])
        elif token.type in ("td_open", "th_open"):
            cell = ""
        elif token.type in ("td_close", "th_close"):
            found[-1].append(cell)
        elif token.type == "inline" and cell is not None:
            cell = "".join(child.content for child in token.children)
    return found


@every
@pytest.mark.parametrize("form", ["markdown", "github-summary"])
def test_names_are_text_and_code_and_nothing_else(made, form):
    tokens = list(flat(parsed(render(made, form))))
    for token in tokens:
        assert token.type not in ("link_open", "image", "em_open", "s_open", "hr", "ordered_list_open"), token
        if token.type in ("html_block", "html_inline"):
            rest = OWN_TAGS.sub("", token.content)
            assert not re.search(r"<[/!?a-zA-Z]", rest), token.content
    opened = sum(token.content.count("<details>") for token in tokens if token.type == "html_block")
    assert opened == sum(token.content.count("</details>") for token in tokens if token.type == "html_block")
    assert sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) == (form == "markdown")


@every
def test_every_table_keeps_its_columns(made):
    for form in ("markdown", "github-summary"):
        text = render(made, form)
        widths = [len(row) for row in rows(flat(parsed(text)))]
        lines = [
            line for line in re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text).splitlines() if line.startswith("|")
        ]
        ruled = [line for line in lines if re.fullmatch(r"\|[:|-]+\|", line)]
        assert len(widths) == len(lines) - len(ruled)  # no row fell out of its table


@every
def test_the_layer_table_is_that_of_the_report(made):
    text = render(made, "markdown")
    cells = rows(flat(parsed(text)))
    titles = [row for row in cells if row and row[0] == "module"]
    layers = layer_rows(made)
    assert bool(titles) == bool(layers)
    if layers:
        first = cells.index(titles[0]) + 1
        shown = cells[first : first + min(len(layers), markdown.LIMITS["layers"])]
        for row, layer in zip(shown, layers, strict=False):
            if len(layer.module) < 40:
                assert row[0].replace("\u200b", "") == visible(layer.module) or not layer.module
            if layer.underflow_backward and "underflow backward" in titles[0]:
                assert row[titles[0].index("underflow backward")] == percent(layer.underflow_backward)


@given(st.text())
def test_prose_shows_what_it_was_given(text):
    for written in (prose(text), code(text), f"- {prose(text)}", f"# {inline(text)} #"):
        tokens = list(flat(parsed(f"{written}\n")))
        assert not [
            token for token in tokens if token.type in ("html_inline", "link_open", "em_open", "strong_open")
        ]
        shown = "".join(t.content for t in tokens if t.type in ("text", "code_inline", "text_special"))
        assert shown.replace("\u200b", "").strip() == visible(text).strip()


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=4))
def test_cells_stay_in_their_columns(texts):
    written = table(("a", "b>"), [[code(first), inline(second)] for first, second in texts])
    shown = [[cell.replace("\u200b", "") for cell in row] for row in rows(flat(parsed(written)))]
    assert shown == [["a", "b"], *([visible(first), visible(second)] for first, second in texts)]


@given(st.text(alphabet="`~ab\n"))
def test_nothing_ends_a_fence_but_its_own_end(text):
    (token,) = parsed(fence(text))
    assert token.type == "fence"
    assert token.content.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("name", NAMES)
def test_github_is_told_of_nobody_and_links_nowhere(name):
    shown = unescape(inline(name).replace("\\", ""))
    assert not re.search(r"@\w|#\d|://|www\.", shown)
    assert shown.replace("\u200b", "") == visible(name).replace("\\", "")


def test_a_summary_fits_a_comment_whatever_the_report():
    site = Site("m" * 3000, "o" * 3000, "output", Phase.FORWARD, "float16", "f" * 3000, 3)
    many = tuple(
        finding(site, message="|" * 9000, name="n" * 900, severity=Severity.ERROR) for _ in range(900)
    )
    made = replace(hostile(), findings=many, target="t" * 9000, advice=("a" * 70_000,), patch="p\n" * 150)
    text = summary.render(made)
    assert len(text) <= summary.LIMIT
    assert "and 890 more findings" in text
    assert text.rstrip().endswith("too long to be shown here")


@given(st.lists(st.integers(1, 300)), st.integers(60, 900))
def test_parts_are_left_out_from_the_first_that_does_not_fit(sizes, limit):
    parts = ["x" * size for size in sizes]
    text = summary.fitting(parts, limit)
    assert len(text) <= limit
    shown = text.split("\n\n… and")[0].rstrip("\n").split("\n\n")
    if "… and" in text:
        assert int(re.search(r"and (\d+) more part", text)[1]) + (
            0 if text.startswith("…") else len(shown)
        ) == len(parts)
    else:
        assert text.rstrip("\n") == "\n\n".join(parts).rstrip("\n")


def test_what_is_not_shown_is_counted():
    text = render(many_layers(), "markdown")
    assert f"and {len(layer_rows(many_layers())) - markdown.LIMITS['layers']} more layers" in text
    site = Site("net", "addmm", "output", Phase.BACKWARD, "float16", "model.py", 7)
    findings = tuple(finding(site) for _ in range(markdown.FINDINGS + 3))
    assert "… and 3 more findings" in render(replace(clean(), findings=findings), "markdown")


@every
def test_pictures_are_well_formed_and_say_what_the_report_says(made):
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        picture = landscape(made, phase, 40, 96)
        text = landscape_svg(made, phase)
        assert bool(text) == bool(picture.rows)
        if not text:
            continue
        root = ET.fromstring(text)
        assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {
            "svg",
            "style",
            "rect",
            "text",
            "title",
            "path",
            "line",
        }
        bars = [node for node in root.iter(f"{SVG}rect") if "bar" in node.get("class").split()]
        drawn = [
            (count, column)
            for row in picture.rows
            for count, column in zip(row.counts, picture.columns, strict=True)
        ]
        assert len(bars) == sum(count > 0 for count, _ in drawn)
        for zone in Zone:
            kinds = [bar for bar in bars if zone in bar.get("class").split()]
            assert len(kinds) == sum(count > 0 and column.zone is zone for count, column in drawn)
        for node in bars:
            assert 0 <= float(node.get("x")) <= float(root.get("width"))
            assert (
                0
                <= float(node.get("y"))
                <= float(node.get("y")) + float(node.get("height"))
                <= float(root.get("height"))
            )


@pytest.mark.parametrize("name", SAVED)
def test_the_curve_falls_where_the_figures_fall(name):
    text = curve_svg(saved(name))
    points = scale_curve(saved(name))
    assert bool(text) == bool(points[0].nonzero)
    if text:
        root = ET.fromstring(text)
        lines = {node.get("class"): node.get("d") for node in root.iter(f"{SVG}path") if "L" in node.get("d")}
        heights = [float(spot.split(" ")[1]) for spot in lines["underflowed line"][1:].split("L")]
        for (before, after), (high, low) in zip(pairwise(points), pairwise(heights), strict=True):
            assert (after.underflowed.low <= before.underflowed.low) == (low >= high)


def test_pictures_beside_a_page_are_linked_and_leave_their_drawings_out():
    names = {name: f"a b.{name}.svg" for name in markdown.pictures(saved("t5"))}
    assert set(names) == {"gradients", "activations", "scales"}
    tokens = list(flat(parsed(markdown.render(saved("t5"), names))))
    assert [token.attrs["src"] for token in tokens if token.type == "image"] == [
        "a%20b.gradients.svg",
        "a%20b.activations.svg",
        "a%20b.scales.svg",
    ]
    assert not any(token.type == "fence" and token.info == "text" for token in tokens)
