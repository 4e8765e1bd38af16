"""What became of a report: the words, the widths, the moves, and when it is worse."""

import json
from dataclasses import replace

import pytest
from builders import finding, report
from examples import REPORTS, clean, cnn, forward_overflow, two_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ampcheck.cli import main
from ampcheck.compare.baseline import layers
from ampcheck.compare.comparison import SHOWN, compare_reports
from ampcheck.renderers.comparison import render
from ampcheck.renderers.comparison_text import markdown, to_json
from ampcheck.saved.report_json import to_json as report_json
from ampcheck.saved.report_json import write
from ampcheck.values.findings import Severity

SHIFTED = report(
    [
        replace(layer, activation=layer.activation + 4, gradient=layer.gradient - 3)
        if layer.path.startswith("blocks.2")
        else layer
        for layer in cnn()
    ],
    log2_scale=14,
)
PAIRS = {
    "broken": (clean(), REPORTS["forward_overflow"]()),
    "healed": (REPORTS["forward_overflow"](), clean()),
    "shifted": (clean(), SHIFTED),
    "planned": (REPORTS["gradient_underflow"](), REPORTS["planned"]()),
    "same": (clean(), clean()),
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("pair", PAIRS)
def test_snapshots(pair, width, snapshot):
    snapshot(render(compare_reports(*PAIRS[pair]), width=width), f"diff/{pair}.{width}.txt")


@pytest.mark.parametrize("pair", PAIRS)
def test_snapshots_of_markdown(pair, snapshot):
    snapshot(markdown(compare_reports(*PAIRS[pair])), f"diff/{pair}.md")


@pytest.mark.parametrize("new", REPORTS)
@pytest.mark.parametrize("old", ["nasty", "clean", "empty"])
def test_any_two_reports_can_be_compared(old, new):
    comparison = compare_reports(REPORTS[old](), REPORTS[new]())
    for width in (60, 100):
        text = render(comparison, width=width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert "\x1b" not in text
    assert "\x1b[" in render(comparison, color=True)
    assert "<script>" not in markdown(comparison)
    assert json.loads(to_json(comparison))["worse"] is comparison.worse


@settings(max_examples=8)
@given(st.floats(-8, 8), st.floats(-8, 8))
def test_moves_are_what_was_moved(activation, gradient):
    moved = [
        replace(layer, activation=layer.activation + activation, gradient=layer.gradient + gradient)
        if layer.path == "head"
        else layer
        for layer in cnn()
    ]
    comparison = compare_reports(clean(), report(moved))
    assert comparison.compared == len(cnn())
    if max(abs(activation), abs(gradient)) > SHOWN + 0.1:
        (move,) = comparison.moves
        assert move.module == "head"
        assert move.forward.typical == pytest.approx(activation, abs=0.1)
        assert move.backward.typical == pytest.approx(gradient, abs=0.1)
        assert abs(move.octaves) == pytest.approx(max(abs(activation), abs(gradient)), abs=0.1)
    if max(abs(activation), abs(gradient)) < SHOWN - 0.1:
        assert comparison.moves == ()


def test_there_and_back_is_the_opposite():
    there, back = (compare_reports(*pair) for pair in (PAIRS["shifted"], PAIRS["shifted"][::-1]))
    assert {move.module: move.octaves for move in there.moves} == {
        move.module: -move.octaves for move in back.moves
    }
    assert {move.module for move in there.moves} == {"blocks.2.conv1", "blocks.2.conv2"}
    assert set(layers(clean())) == set(layers(SHIFTED))


def test_worse_is_an_answer_a_finding_or_a_plan():
    assert compare_reports(*PAIRS["broken"]).worse
    assert not compare_reports(*PAIRS["healed"]).worse
    assert not compare_reports(*PAIRS["same"]).worse
    assert not compare_reports(*PAIRS["shifted"]).worse
    site = next(iter(clean().low.sites))
    noted = replace(clean(), findings=(finding(site, severity=Severity.INFO),))
    warned = replace(clean(), findings=(finding(site, severity=Severity.WARNING),))
    assert compare_reports(noted, warned).worse
    assert not compare_reports(warned, noted).worse


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, made in (("a", clean()), ("b", forward_overflow()), ("c", two_ranks())):
        write(f"{name}.json", report_json(made))
    assert main(["diff", "a.json", "b.json"]) == 1
    out = capsys.readouterr().out
    assert " WORSE " in out
    assert "AMP101 forward-overflow at blocks.1.attn · bmm is new (error)" in out
    assert main(["diff", "b.json", "a.json"]) == 0
    assert main(["diff", "a.json", "a.json", "--format", "json", "-o", "d.json"]) == 0
    assert json.loads((tmp_path / "d.json").read_text())["differences"] == []
    assert main(["diff", "b.json", "c.json"]) == 1
    assert main(["diff", "a.json", "missing.json"]) == 2
