"""The HTML report as text: what it holds, what it escapes, what its policy allows, and the numbers in it."""

import json
import random
import re
from base64 import b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders import Layer, finding, repeated, report, sentence_of
from conftest import SNAPSHOTS
from examples import NASTY, REPORTS, clean, forward_overflow, many_layers, planned
from saved_reports import SAVED, saved

from ampcheck.diagnose.tables import layer_rows, scale_curve
from ampcheck.renderers import html, render
from ampcheck.renderers.drawing import NONE
from ampcheck.renderers.page import numbers, tree
from ampcheck.renderers.page.elements import shown, tag
from ampcheck.renderers.page.picture import shade
from ampcheck.values.findings import How, Severity, Suppressed
from ampcheck.values.report import low_tensors
from ampcheck.values.stats import TensorStats, merge
from ampcheck.values.trace import ModuleInfo, Phase
from ampcheck.values.wording import percent

KEPT = ("clean", "forward_overflow", "gradient_underflow", "planned", "two_ranks", "bf16", "nasty")
KEPT_REPORTS = {name: REPORTS[name] for name in KEPT} | {
    f"saved_{name}": partial(saved, name) for name in SAVED
}
VOID = {"meta", "link", "input", "br", "hr", "img", "col"}


class Outline(HTMLParser):
    """What an HTML parser sees: elements, their attributes and texts, and whether all that opens closes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words, self.raw = [], [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        kind = self.open[-1] if self.open else ""
        if kind in ("script", "style"):
            self.raw.setdefault(kind, []).append(data)
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def attributes(self, name):
        return [attributes for element, attributes in self.elements if element == name]


def page(report):
    return Outline(html.render(report))


def skeleton(text):
    """Return the page without its styles, its script and what follows from them, an element a line."""
    text = re.sub(r"(<(style|script)[^>]*>).*?(</\2>)", r"\1\3", text, flags=re.DOTALL)
    text = re.sub(r"sha256-[\w+/=]+", "sha256-", text)
    return re.sub(
        r"(<(?:section|tr|t[hd]|li|d[dlt]|div|figure|h\d|p|[ou]l|table|details|svg|path|rect|text)\b)",
        r"\n\1",
        text,
    )


@pytest.mark.parametrize("name", KEPT_REPORTS)
def test_the_page_reads_as_it_did(name, snapshot):
    snapshot(skeleton(html.render(KEPT_REPORTS[name]())), f"html/{name}.html")


def test_no_snapshot_is_an_orphan():
    assert {path.stem for path in (SNAPSHOTS / "html").iterdir()} == set(KEPT_REPORTS)


def embedded(outline):
    return json.loads(outline.raw["script"][0])


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_is_one_well_formed_page_with_its_verdict(name):
    text = render(REPORTS[name](), "html")
    outline = Outline(text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    assert " ".join(sentence_of(REPORTS[name]()).split()) in outline.text
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = [a["href"][1:] for a in outline.attributes("a") if a["href"].startswith("#")]
    assert set(pointed) <= set(ids)


@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_fetched_and_nothing_runs_but_the_one_script(name):
    text = html.render(REPORTS[name]())
    outline = Outline(text)
    policy = outline.attributes("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'; base-uri 'none'; form-action 'none'")
    assert "unsafe" not in policy["content"]
    script, style = outline.raw["script"][1], outline.raw["style"][0]
    for kind, source in (("script", script), ("style", style)):
        digest = b64encode(sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy["content"]
    assert len(outline.attributes("script")) == 2
    for _, attributes in outline.elements:
        assert not {key for key in attributes if key.startswith("on") or key in ("style", "srcdoc", "action")}
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"innerHTML|eval|fetch\(|https?://(?!www\.w3\.org/2000/svg)", script)


def test_hostile_names_are_text_and_nothing_else():
    hostile = [
        *NASTY,
        "<img src=x onerror=alert(1)>",
        '"><svg onload=alert(1)>',
        "<!--",
        "-->",
        "]]>",
        "\u2028",
    ]
    made = report([Layer(name, name, name, line=index) for index, name in enumerate(hostile)])
    made = replace(
        made, patch="--- a\n+++ b\n+</pre><script>alert(1)</script>\x1b[31m\n", advice=tuple(hostile)
    )
    text = html.render(made)
    text.encode("utf-8")
    outline = Outline(text)
    assert "img" not in {name for name, _ in outline.elements}
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert not set("\u202e\u2028\u2029\x1b") & set(text)
    data = outline.raw["script"][0]
    assert not set("<>&") & set(data)
    assert {module[0] for module in json.loads(data)["modules"]} >= {"<!--", "<img src=x onerror=alert(1)>"}


def test_no_style_or_script_is_left_out():
    kept = {path.name for path in (Path(html.__file__).parent / "page" / "assets").iterdir()}
    assert kept == {*html._STYLES, *html._SCRIPTS}


def test_a_tag_escapes_text_and_keeps_markup():
    assert tag("p", "a < b & c", tag("b", '"'), title='"<>') == (
        '<p title="&quot;&lt;&gt;">a &lt; b &amp; c<b>&quot;</b></p>'
    )
    assert tag("input", value=3, hidden=True, name=None) == '<input value="3" hidden>'
    assert shown("a\x1b[31mb\u202e") == "ab"


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_the_embedded_histograms_are_all_that_the_loss_scale_has_to_suit(name, phase):
    made = REPORTS[name]()
    sites = [
        site
        for site in embedded(page(made))["sites"]
        if site[8] == 2 and site[1] == (phase is Phase.BACKWARD)
    ]
    counts = merge(TensorStats(site[9], tuple(site[10]), zeros=site[12], amax=site[11]) for site in sites)
    truth = merge(low_tensors(made, phase).values())
    assert (counts.lowest, counts.counts, counts.zeros, counts.amax) == (
        truth.lowest,
        truth.counts,
        truth.zeros,
        truth.amax,
    )


def test_the_figures_shown_without_the_script_are_those_of_the_scale_in_use():
    made = many_layers()
    point = scale_curve(made, [made.log2_scale])[0]
    text = page(made).text
    assert f"underflow{percent(point.underflowed.low / point.nonzero)} {point.underflowed.low:,} to" in text
    for each in scale_curve(made):
        assert f"2^{each.log2_scale}" in text
        assert percent(each.underflowed.low / each.nonzero) in text


def test_every_layer_is_a_row_with_its_figures():
    made = many_layers()
    text = page(made).text
    for row in layer_rows(made):
        name = row.module.rpartition(".")[2]
        assert f"{name}Linear" in text
        assert (percent(row.underflow_backward) if row.underflow_backward else NONE) in text


def test_the_plan_its_evidence_and_the_patch_are_there_word_for_word():
    patch = "--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,3 @@\n def f(x):\n+    x = x.float()  # wide  enough\n     return x\n"
    made = replace(planned(), patch=patch, advice=("a step takes 1.07 times as long",))
    outline = page(made)
    assert "".join(outline.words).count(patch.rstrip("\n")) == 1
    for claim in made.claims:
        assert claim.claim in outline.text
        assert str(claim.tried) in outline.text
    assert "GradScaler(init_scale=2**13, growth_interval=500)" in outline.text
    assert "a step takes 1.07 times as long" in outline.text


def test_what_overflows_after_the_place_a_finding_starts_in_is_called_passed_on():
    rows = {row["id"] for row in page(forward_overflow()).attributes("tr") if "id" in row}
    text = page(forward_overflow()).text
    assert rows
    assert "✕AMP101" in text
    assert "overflow, passed on" in text


def test_findings_that_do_not_count_are_shown_as_such():
    made = clean()
    origin = next(iter(made.low.sites))
    held = Suppressed(
        finding(origin, severity=Severity.WARNING), How.COMMENT, "model.py:12", "known since May"
    )
    text = page(replace(made, suppressed=(held,))).text
    assert "Suppressed 1 finding that does not count" in text
    assert "comment at model.py:12: known since May" in text


def test_the_tree_has_every_module_below_its_parent():
    made = report([Layer("a.b.0"), Layer("a.b.1"), Layer("c"), Layer("")])
    made = replace(made, low=replace(made.low, modules=(ModuleInfo("a", "A"), *made.low.modules)))
    nodes = tree.module_tree(made, layer_rows(made))
    assert [(node.path, node.depth, node.end) for node in nodes] == [
        ("", 0, 1),
        ("a", 0, 5),
        ("a.b", 1, 5),
        ("a.b.0", 2, 4),
        ("a.b.1", 2, 5),
        ("c", 0, 6),
    ]
    assert [bool(node.row) for node in nodes] == [True, False, False, True, True, True]


def test_the_tree_holds_whatever_paths_there_are():
    draw = random.Random(0)
    paths = sorted({".".join(draw.choices("abc", k=draw.randint(1, 5))) for _ in range(60)})
    draw.shuffle(paths)
    made = report([])
    low = replace(made.low, modules=tuple(ModuleInfo(path, "M") for path in ("", *paths)))
    nodes = tree.module_tree(replace(made, low=low), ())
    found = [node.path for node in nodes]
    assert len(found) == len(set(found))
    assert set(found) >= {"", *paths}
    for node in nodes[1:]:
        inside = [other for other in found if other.startswith(f"{node.path}.")]
        assert found[node.index + 1 : node.end] == inside


def test_shades_tell_powers_of_ten_apart():
    assert [shade(10.0**-exponent) for exponent in range(7)] == [8, 7, 5, 4, 2, 1, 1]
    assert [shade(share / 1000) for share in range(1, 1001)] == sorted(
        shade(s / 1000) for s in range(1, 1001)
    )


def test_a_report_of_5000_sites_takes_little_room():
    made = repeated(report([Layer(f"block.{index}", line=index) for index in range(10)]), 250)
    assert len(made.low.sites) == 5000
    assert len(html.render(made)) < 5e6


def test_the_embedded_numbers_are_compact():
    made = many_layers()
    nodes = tree.module_tree(made, layer_rows(made))
    data = numbers.data(made, nodes, range(25))
    assert len(data) < 250 * len(made.low.sites)
