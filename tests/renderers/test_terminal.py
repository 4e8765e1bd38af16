"""The terminal report: pictures that were looked at, and what must hold in every one of them."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import finding, stats
from conftest import SNAPSHOTS
from examples import REPORTS, clean, many_layers, nasty, planned
from rich.ansi import AnsiDecoder

from ampcheck.diagnose.landscape import Zone, landscape
from ampcheck.diagnose.savings import forward_bytes
from ampcheck.diagnose.tables import layer_rows, scale_curve
from ampcheck.diagnose.verdict import diagnosed
from ampcheck.renderers import terminal
from ampcheck.renderers.drawing import NONE, TIMES, cells
from ampcheck.renderers.terminal_blocks import LIMITS
from ampcheck.values.loop import Loop
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.trace import Failure, Phase, Site
from ampcheck.values.verdict import Coverage
from ampcheck.values.wording import clean as visible
from ampcheck.values.wording import percent, size

WIDTHS = (80, 100)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_the_report_looks_as_it_did(name: str, width: int, snapshot: Callable[[str, str], None]) -> None:
    snapshot(terminal.render(REPORTS[name](), width=width), f"terminal/{name}.{width}.txt")


def test_details_show_every_layer_and_both_landscapes(snapshot: Callable[[str, str], None]) -> None:
    text = terminal.render(many_layers(), width=100, details=True)
    snapshot(text, "terminal/details.100.txt")
    assert "more" not in text
    assert text.count("Linear  ") == 60
    assert "\nActivations" in text


def test_no_snapshot_is_an_orphan() -> None:
    expected = {f"{name}.{width}.txt" for name in REPORTS for width in WIDTHS} | {"details.100.txt"}
    assert {path.name for path in (SNAPSHOTS / "terminal").iterdir()} == expected


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("details", [False, True])
def test_no_line_is_longer_than_the_width(name: str, *, details: bool) -> None:
    made = REPORTS[name]()
    for width in (60, 72, 80, 100, 140, 200):
        lines = terminal.render(made, width=width, details=details).splitlines()
        assert max(map(cells, lines)) <= width
        assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("name", REPORTS)
def test_colour_adds_nothing_but_colour(name: str) -> None:
    colored = terminal.render(REPORTS[name](), color=True)
    plain = terminal.render(REPORTS[name]())
    assert "\x1b[" in colored
    assert "\x1b" not in plain
    decoded = [line.plain.rstrip() for line in AnsiDecoder().decode(colored.rstrip("\n"))]
    assert decoded == plain.splitlines()


def test_names_of_strangers_can_do_nothing() -> None:
    plain = terminal.render(nasty(), details=True)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ud800-\udfff]", plain)
    assert "[bold red]markup[/]" in plain  # shown, not obeyed
    assert re.findall(r"\x1b\[[0-9;]*31", terminal.render(clean(), color=True)) != []
    plain.encode()


@pytest.mark.parametrize(
    "environ", [{"COLUMNS": "40"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}]
)
def test_the_same_report_looks_the_same_everywhere(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, colored = terminal.render(clean()), terminal.render(clean(), color=True)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert terminal.render(clean()) == plain
    assert terminal.render(clean(), color=True) == colored


@pytest.mark.parametrize("name", ["clean", "gradient_underflow", "forward_overflow"])
def test_the_layer_table_is_that_of_the_report(name: str) -> None:
    made = REPORTS[name]()
    text = terminal.render(made)
    table = text[text.index("\nLayers") : text.index("\nGradients")].splitlines()[4:]
    for line, row in zip(table, layer_rows(made), strict=False):
        assert line.split()[0] == row.location
        figures = line.replace(" %", "%").split()
        if row.underflow_backward:
            assert percent(row.underflow_backward).replace(" ", "") in figures
        if row.overflowed:
            assert f"{row.overflowed:,}" in figures


def test_the_landscape_draws_what_is_lost_left_of_the_first_edge() -> None:
    made = REPORTS["gradient_underflow"]()
    picture = landscape(made, Phase.BACKWARD)
    text = terminal.render(made)
    section = text[text.index("\nGradients") : text.index("\nLoss scale")].splitlines()[3:-1]
    for line, row in zip(section, picture.rows, strict=True):
        drawn = line[18:].split("┆")
        assert len(drawn) == 4
        for part, zone in zip(drawn, Zone, strict=True):
            some = row.share(zone, picture.columns) > 0
            assert some == any(char in "▁▂▃▄▅▆▇█·" for char in part)
        assert line.endswith(percent(row.share(Zone.UNDERFLOWED, picture.columns)))


def test_the_curve_shows_its_figures_and_marks_the_scale() -> None:
    made = REPORTS["gradient_underflow"]()
    text = terminal.render(made)
    lines = text[text.index("\nLoss scale") :].splitlines()
    shares = [
        percent(p.underflowed.low / p.nonzero) if p.underflowed.low else NONE for p in scale_curve(made)[::4]
    ]
    assert re.split(r"  +", lines[4].strip()) == shares
    assert lines[7].index("▲ used") == lines[2].index("2^4 ")
    assert lines[7].index("△") == lines[2].index("2^16")


def test_a_scale_between_the_marks_is_marked_where_it_is() -> None:
    text = terminal.render(many_layers())
    lines = text[text.index("\nLoss scale") :].splitlines()
    assert lines[7].index("▲ used") == (lines[2].index("2^8") + lines[2].index("2^12")) // 2


def test_findings_are_counted_limited_and_shown_with_their_place() -> None:
    site = Site("net.head", "addmm", "output", Phase.BACKWARD, "float16", "model.py", 7)
    made = replace(clean(), findings=tuple(finding(site, code=f"AMP{i}") for i in range(15)))
    text = terminal.render(made)
    assert "Findings  15 warnings" in text
    assert text.count("warning[AMP") == LIMITS["findings"]
    assert "… and 3 more" in text
    assert "warning[AMP0] gradient-underflow  model.py:7" in text
    assert "net.head · addmm · fp16 · underflowed 38 % · suggested scale 2^18" in text
    assert terminal.render(made, details=True).count("warning[AMP") == 15
    bare = replace(clean(), findings=(finding(site, sites=(), numbers={}),))
    assert "warning[AMP201] gradient-underflow\n" in terminal.render(bare)


def test_what_was_not_audited_is_always_said() -> None:
    assert "Not audited  nothing · 70 operations seen" in terminal.render(clean())
    missed = replace(clean(), low=replace(clean().low, not_audited={"sparse": 2, "complex": 31}))
    text = terminal.render(missed)
    assert text.index(f"31{TIMES} complex") < text.index(f"2{TIMES} sparse")
    assert "Not audited  nothing" not in text


def test_a_stopped_step_and_refused_scales_are_said() -> None:
    failure = Failure("RuntimeError", "no", "net", "mm", "model.py", 3)
    stopped = replace(clean(), low=replace(clean().low, sites={}, failure=failure))
    told = diagnosed(stopped, Coverage())
    assert "fp16 autocast stops the step: RuntimeError at model.py:3" in terminal.render(told)
    refused = terminal.render(replace(clean(), refused_scales=(24, 23, 22, 21)))
    assert "gradients overflowed at 2^24 … 2^21:" in refused


def test_the_plan_is_written_as_a_person_would_write_it() -> None:
    text = terminal.render(planned())
    assert "Plan  2 of 4 claims confirmed" in text
    assert "GradScaler(init_scale=2**13, growth_interval=500)" in text
    odd = replace(planned(), plan=Plan("bf16", scaler=ScalerPlan(3.0)), claims=())
    assert "Plan  not tried" in terminal.render(odd)
    assert "GradScaler(init_scale=3)" in terminal.render(odd)
    assert "Plan  none: the step was not run again" in terminal.render(clean())
    assert "\nPlan" not in terminal.render(clean(), short=True)


def advised(plan: Plan | None, **more: object) -> tuple[str, str]:
    """Return what a safe report tells to do, and what it tells of its plan."""
    text = terminal.render(replace(clean(), plan=plan, **more), width=120)
    return text.split("Do this: ")[1].partition("\n")[0], text.split("\nPlan  ")[1].partition("\n")[0]


def test_no_change_is_needed_is_never_said_beside_a_change() -> None:
    loop = Loop(steps=3, first_scales={"scaler 1": 2.0**16})
    scaler = "train in fp16: GradScaler(init_scale=2**{}); no other change is needed"
    assert advised(Plan("fp16", scaler=ScalerPlan(2.0**15))) == (
        scaler.format(15),
        "the loss scale follows from the gradients in FP32, without a trial",
    )
    assert advised(None)[0] == scaler.format(16)
    assert advised(Plan("fp16")) == (
        "train in fp16: no change is needed",
        "no change is needed, so there was nothing to try",
    )
    assert advised(None, log2_scale=0)[0] == "train in fp16: no change is needed"
    assert advised(None, loop=loop)[0] == "train in fp16 as the script does: no change is needed"
    assert "GradScaler" not in terminal.render(replace(clean(), loop=loop), short=True)
    kept = Plan("fp16", ("head",), scaler=ScalerPlan(2.0**15))
    assert advised(kept) == (
        "train in fp16: GradScaler(init_scale=2**15), keep head (Linear) in FP32",
        "not tried",
    )


def test_a_precision_that_came_out_well_as_it_is_stands_beside_a_change() -> None:
    kept = Plan("fp16", ("head",), scaler=ScalerPlan(2.0**15))
    change = "train in fp16: GradScaler(init_scale=2**15), keep head (Linear) in FP32"
    healthy, harmed = Outcome(0, grad_error=0.01), Outcome(0, grad_error=0.9)
    assert advised(kept, outcomes={"bf16": healthy})[0] == f"{change}; or bf16: no change"
    assert advised(kept, outcomes={"bf16": harmed})[0] == change
    assert "bf16" not in advised(Plan("fp16", scaler=ScalerPlan(2.0**15)), outcomes={"bf16": healthy})[0]
    lower = {"precision": "bf16", "log2_scale": 0, "outcomes": {"fp16": Outcome(13, grad_error=0.01)}}
    told = advised(Plan("bf16", ("head",)), **lower)[0]
    assert (
        told == "train in bf16: keep head (Linear) in FP32; or fp16 with GradScaler(init_scale=2**13) alone"
    )


def test_of_a_long_list_of_what_was_not_seen_the_first_screen_names_one() -> None:
    names = ", ".join(f"model.layers.{n}.attention.out_proj" for n in range(6))
    missed = {f"modules that were never called: {names}": 6}
    made = replace(clean(), low=replace(clean().low, not_audited=missed))
    short = terminal.render(made, width=120, short=True)
    assert "modules that were never called: model.layers.0.attention.out_proj and others\n" in short


def test_a_layer_that_overflowed_altogether_has_a_range_of_none() -> None:
    made = clean()
    broken = stats([float("nan")] * 9)
    sites = {site: broken if site.module == "head" else held for site, held in made.low.sites.items()}
    text = terminal.render(replace(made, low=replace(made.low, sites=sites)))
    assert re.search(rf"head +Linear +fp16 +{NONE} +{NONE} ", text)


def test_the_short_report_of_a_safe_model_has_eight_lines() -> None:
    made = replace(clean(), outcomes={"settled": Outcome(16, grad_error=0.001)})
    lines = terminal.render(made, width=120, short=True).splitlines()
    assert [line.strip().partition(":")[0] for line in lines[3:]] == [
        "Do this",
        "Why",
        "What it buys",
        "Not seen",
        "More",
    ]
    assert len(lines) == 8
    assert "SAFE" in lines[2]


@pytest.mark.parametrize("name", REPORTS)
def test_the_short_report_leaves_no_finding_and_no_change_out(name: str) -> None:
    made = REPORTS[name]()
    text, whole = terminal.render(made, short=True), terminal.render(made)
    assert len(text.splitlines()) <= len(whole.splitlines()) + 2
    assert "\nLayers" not in text
    for one in made.findings[: LIMITS["findings"]]:
        assert visible(one.code) in text
    if made.findings and made.patch.startswith("---"):
        assert all(line.strip() in text for line in made.patch.splitlines())


def test_what_the_forward_saves_is_what_was_written() -> None:
    made = clean()
    widths = {"float16": 2, "bfloat16": 2, "float32": 4}
    expected = [
        sum(
            stats.numel * widths[site.dtype]
            for site, stats in trace.sites.items()
            if site.op and site.phase is Phase.FORWARD and "output" in site.slot
        )
        for trace in (made.low, made.reference)
    ]
    assert list(forward_bytes(made)) == expected
    assert f"writes {size(expected[0])}, in FP32 {size(expected[1])}" in terminal.render(made)
