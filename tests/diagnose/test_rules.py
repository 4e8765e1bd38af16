"""The rules: each fires on its model and on no healthy one, and its manual is whole.

`PYTHONPATH=tests/helpers python tests/diagnose/test_rules.py` writes the table of rules into the manual.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import Layer, stats
from builders import report as built
from hypothesis import given
from hypothesis import strategies as st
from rule_models import CASES, report

from ampcheck.diagnose.rules import RULES, diagnose
from ampcheck.diagnose.rules.constants import lost_constant, rounded
from ampcheck.diagnose.rules.manual import SECTIONS, page, table
from ampcheck.diagnose.suspects import origin_first
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.findings import Severity
from ampcheck.values.formats import BF16, FP16
from ampcheck.values.outcome import Outcome
from ampcheck.values.trace import Cast, CastCount, Constant, ErrorJump, PairError, Phase, Site, UpdateLoss

MANUAL = Path(__file__).parents[2] / "ampcheck" / "manual" / "rules.md"
MARKS = "<!-- rules -->", "<!-- /rules -->"
DTYPES = {FP16: torch.float16, BF16: torch.bfloat16}


@pytest.fixture(scope="module")
def audits():
    known = {}

    def audit(code):
        if code not in known:
            known[code] = report(CASES[code])
        return known[code]

    return audit


def with_rules(text):
    """Return the page with the table of rules as it has to be."""
    begin, end = (text.index(mark) for mark in MARKS)
    return f"{text[: begin + len(MARKS[0])]}\n{table()}\n{text[end:]}"


# The manual


@pytest.mark.parametrize("code", RULES)
def test_every_rule_has_all_five_sections(code):
    shown = page(code)
    assert tuple(shown.sections) == SECTIONS
    assert all(text.endswith(".") for text in shown.sections.values())
    assert shown.summary.endswith(".")
    assert "\n" not in shown.summary


def test_codes_and_functions_are_used_once():
    assert len(set(RULES.values())) == len(RULES)
    assert all(re.fullmatch(r"AMP[1-7]\d\d", code) for code in RULES)


def test_every_rule_has_a_model():
    loops = {code for code in RULES if code.startswith("AMP4")} | {"AMP206"}  # theirs are in loop_cases.py
    elsewhere = {"AMP105", "AMP505", "AMP506", "AMP507", "AMP508", "AMP509", "AMP510"} | {
        code for code in RULES if code.startswith("AMP7")
    }  # of casts, of scripts, of recipes
    assert set(CASES) == set(RULES) - loops - elsewhere


def test_the_manual_lists_the_rules():
    text = MANUAL.read_text(encoding="utf-8")
    assert text == with_rules(text), "python tests/diagnose/test_rules.py"


# Each on its model


@pytest.mark.parametrize("code", CASES)
def test_a_rule_fires_on_its_model(audits, code):
    audited = audits(code)
    found = [finding for finding in audited.findings if finding.code == code]
    assert [str(finding.severity) for finding in found] == [CASES[code].severity]
    assert found[0].name == page(code).name
    assert found[0].origin is not None
    assert all(math.isfinite(value) for value in found[0].numbers.values())
    assert found[0].message == " ".join(found[0].message.split())


@pytest.mark.parametrize("code", CASES)
def test_an_error_was_seen_in_a_run(audits, code):
    audited = audits(code)
    outcomes = audited.outcomes
    shown = (
        audited.low.failure is not None
        or outcomes["settled"].harmed
        or (outcomes.get("unscaled") is not None and outcomes["unscaled"].harmed)
        or bool(audited.refused_scales)
        or any(update.stuck + update.wrong for update in audited.updates)
    )
    assert shown or audited.worst is not Severity.ERROR


@pytest.mark.parametrize("code", CASES)
def test_the_same_findings_follow_from_a_saved_report(audits, code):
    audited = audits(code)
    assert diagnose(from_json(to_json(replace(audited, findings=())))) == audited.findings


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_healthy_model_has_no_finding(precision):
    assert report(None, precision).findings == ()


def test_what_rounding_explains_is_not_called_underflow(audits):
    settled = audits("AMP501").outcomes["settled"]
    assert settled.underflow > 0.15
    assert {finding.code for finding in audits("AMP501").findings} == {"AMP501"}


def test_lost_updates_are_not_told_of_as_stored_parameters_too(audits):
    assert [finding.code for finding in audits("AMP504").findings] == ["AMP504"]


def test_a_missing_scaler_is_told_of_once(audits):
    assert [finding.code for finding in audits("AMP204").findings] == ["AMP204"]


# Constants: what the rule says of a number is what torch does with it


@given(st.floats(allow_nan=False, width=64), st.sampled_from(list(DTYPES)))
def test_a_number_is_rounded_as_torch_rounds_it(value, fmt):
    expected = torch.tensor(value, dtype=torch.float64).to(DTYPES[fmt]).double().item()
    assert rounded(value, fmt) == expected
    assert math.copysign(1, rounded(value, fmt)) == math.copysign(1, expected)


def near_the_edges(fmt):
    half = fmt.smallest_subnormal / 2
    steps = st.sampled_from([half, 1.0, fmt.overflow_from])
    return st.tuples(steps, st.floats(0.5, 2.0), st.booleans()).map(
        lambda t: t[0] * t[1] * (-1 if t[2] else 1)
    )


@pytest.mark.parametrize("fmt", DTYPES)
@given(data=st.data())
def test_an_added_number_is_lost_exactly_where_torch_loses_it(fmt, data):
    value = data.draw(near_the_edges(fmt).filter(lambda v: abs(v) < 3e38))
    zero = torch.zeros(3, dtype=DTYPES[fmt])
    for result in (zero + value, zero - -value, torch.rsub(zero, value)):
        assert result[0].item() == rounded(value, fmt)


@pytest.mark.parametrize("fmt", DTYPES)
@given(data=st.data())
def test_a_bound_or_fill_is_lost_exactly_where_torch_loses_it(fmt, data):
    value = data.draw(near_the_edges(fmt).filter(lambda v: abs(v) < fmt.max))
    zero = torch.zeros(3, dtype=DTYPES[fmt])
    below, above = zero - fmt.max, zero + fmt.max
    everywhere = torch.ones(3, dtype=torch.bool)
    results = [
        below.clamp(min=value),
        above.clamp(max=value),
        below.clamp_min(value),
        zero.masked_fill(everywhere, value),
        torch.full((3,), value, dtype=DTYPES[fmt]),
        torch.full_like(zero, value),
        torch.where(everywhere, value, zero),
        torch.nn.functional.pad(zero, (1, 0), value=value),
        torch.nn.functional.threshold(below, fmt.max / 2, value),
    ]
    assert {result[0].item() for result in results} == {rounded(value, fmt)}


def test_a_factor_is_no_constant_that_gets_lost():
    half = torch.full((3,), 1024.0, dtype=torch.float16)
    assert (half * 1e-8)[0] > 0  # 1e-8 is zero in float16
    assert (half / 1e8)[0] > 0  # and 1e8 infinite


class Guarded(torch.nn.Module):
    """Numbers of all sorts on half-precision and other tensors, in the forward and in the backward."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)

    def forward(self, x):
        half = self.first(x)
        both = half.abs() + half.abs() + 1e-8
        wide = half.float() + 1e-9
        return (both.clamp(1e-7, 0.9999) * 0.25 + half / 1e-3).float() + wide


def test_the_recorder_notes_numbers_that_are_rounded_to_half_precision():
    from ampcheck import check

    torch.manual_seed(0)
    audited = check(Guarded(), torch.randn(5, 4), lambda model, batch: model(batch).square().mean())
    noted = {(constant.site.op, constant.value) for constant in audited.low.constants}
    assert noted == {("add", 1e-8), ("clamp", 1e-7), ("clamp", 0.9999)}
    assert {constant.site.dtype for constant in audited.low.constants} == {"float16"}
    assert all(constant.site in audited.low.sites for constant in audited.low.constants)
    assert audited.reference.constants == ()


def with_constant(value, held, dtype="float16"):
    """Return a report in which an add with a number gave certain results."""
    made = built([Layer("a", dtype=dtype)])
    site = Site("a", "add", "output", Phase.FORWARD, dtype, "model.py", 3)
    low = replace(made.low, sites={**made.low.sites, site: stats(held)}, constants=(Constant(site, value),))
    return replace(made, low=low)


@pytest.mark.parametrize(
    ("value", "held", "severity"),
    [
        (1e-8, [0.0, 1.0], "warning"),
        (1e-8, [0.5, 1.0], "info"),
        (1 - 1e-4, [0.5, 1.0], "warning"),
        (1 - 1e-4, [0.5, 0.75], "info"),
        (-1e9, [0.5, -math.inf], "warning"),
        (1e-6, [0.0, 1.0], None),
        (0.1, [0.0, 1.0], None),
        (-math.inf, [-math.inf], None),
        (0.0, [0.0], None),
        (1.0, [1.0], None),
    ],
)
def test_a_lost_constant_matters_where_values_meet_it(value, held, severity):
    found = lost_constant(with_constant(value, held))
    assert [str(finding.severity) for finding in found] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("amax", "value", "warned"), [(40_000.0, 1.0, True), (40_000.0, -40_000.0, False), (65504.0, 1.0, False)]
)
def test_a_value_that_somebody_chose_is_not_near_overflow(amax, value, warned):
    assert bool(RULES["AMP102"](with_constant(value, [amax, 1.0]))) is warned


def test_bf16_holds_every_ordinary_eps():
    assert lost_constant(with_constant(1e-30, [0.0], "bfloat16")) == []


# What is told first


def nonfinite(report, rows):
    """Return the report with operations that are not finite in low precision: (op, largest in FP32, low values)."""
    low, wide = dict(report.low.sites), dict(report.reference.sites)
    for line, (op, amax, values) in enumerate(rows, 100):
        site = Site("a", op, "output", Phase.FORWARD, "float16", "model.py", line)
        low[site] = stats(values)
        wide[site._replace(dtype="float32")] = stats([amax, 1.0])
    low_trace, reference = replace(report.low, sites=low), replace(report.reference, sites=wide)
    settled = Outcome(0, loss_nonfinite=True)
    return replace(report, low=low_trace, reference=reference, outcomes={"settled": settled})


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("rows", "code", "op"),
    [
        ([("mul", 1e6, [INF, 1.0]), ("sum", 1e7, [INF, 1.0])], "AMP101", "mul"),
        ([("mul", 3.0, [INF, 1.0]), ("log", 18.0, [-INF, 1.0])], "AMP103", "log"),
        ([("sqrt", 2.0, [NAN, 1.0]), ("mul", 2.0, [NAN, 1.0])], "AMP501", "sqrt"),
        ([("mul", 3.0, [INF, 1.0]), ("exp", 1e9, [INF, 1.0])], "AMP101", "exp"),
        ([("mul", 3.0, [INF, 1.0]), ("add", 3.0, [INF, 1.0])], "AMP101", "mul"),
    ],
)
def test_the_origin_is_an_operation_that_can_make_an_infinity(rows, code, op):
    found = diagnose(nonfinite(built([Layer("a")]), rows))
    errors = [finding for finding in found if finding.severity is Severity.ERROR]
    assert (errors[0].code, errors[0].origin.op, len(errors[0].sites)) == (code, op, len(rows))


def test_where_fp32_has_infinities_too_the_order_decides():
    made = nonfinite(built([Layer("a")]), [("mul", 3.0, [NAN, 1.0]), ("log", 18.0, [-INF, 1.0])])
    bad = [site for site, held in made.low.sites.items() if held.nonfinite]
    reference = {site.place: held for site, held in made.reference.sites.items()}
    assert origin_first(made, bad, reference)[0].op == "log"
    mask = Site("a", "masked_fill", "output", Phase.FORWARD, "", "model.py", 1)
    assert origin_first(made, bad, {mask: stats([-INF]), **reference})[0].op == "mul"


def test_a_result_that_is_exact_did_not_lose_the_bits():
    made = built([Layer("a")])
    first = next(iter(made.errors))
    zeros = first._replace(op="zeros")
    jump = ErrorJump(first._replace(op="index_add"), 0.0, 0.7, zeros)
    exact = PairError(sampled=4, live=0, reference_squares=0.0)
    settled = Outcome(0, grad_error=0.7)
    told = replace(made, error_jumps=(jump,), errors={zeros: exact}, outcomes={"settled": settled})
    assert RULES["AMP501"](told)[0].origin.op == "index_add"
    off = replace(exact, error_squares=1.0, reference_squares=1.0)
    assert RULES["AMP501"](replace(told, errors={zeros: off}))[0].origin.op == "zeros"


# Numbers


@pytest.mark.parametrize(
    ("stuck", "wrong", "fires"), [(50, 0, False), (51, 0, True), (0, 51, True), (26, 25, True), (0, 0, False)]
)
def test_updates_are_lost_from_half_of_the_elements_on(stuck, wrong, fires):
    made = replace(built([Layer("a")]), updates=(UpdateLoss("a.weight", 100, stuck, wrong),))
    assert bool(RULES["AMP504"](made)) is fires


def test_adam_on_fp16_weights_is_wrong_and_on_fp32_weights_is_not_looked_at():
    from ampcheck.observe.model.updates import lost_updates
    from ampcheck.observe.step import Step

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)

    def loss(model, batch):
        return 1e-2 * model(batch.to(model.weight.dtype)).float().square().mean()

    torch.manual_seed(0)
    model, batch = torch.nn.Linear(6, 3), torch.randn(8, 6)
    assert lost_updates(Step(model, batch, loss), adam, None) == ()
    model.half()
    by_hand = torch.nn.Linear(6, 3).half()
    by_hand.load_state_dict(model.state_dict())
    optimizer = adam(by_hand)
    for _ in range(2):
        optimizer.zero_grad()
        loss(by_hand, batch).backward()
        optimizer.step()
    losses = {update.name: update for update in lost_updates(Step(model, batch, loss), adam, None)}
    for name, parameter in by_hand.named_parameters():
        broken = int((~parameter.isfinite()).sum())
        assert broken
        assert losses[name].moved == parameter.numel()
        assert losses[name].wrong >= broken


def casts_of(*rows):
    """Return a report with casts: (source, target, elements, calls, round trips)."""
    made = built([Layer("a", casts=0)])
    casts = {}
    for source, target, elements, calls, trips in rows:
        cast = Cast("a", source, target, Phase.FORWARD, "model.py", 5)
        casts[cast] = CastCount(calls, elements, elements * (4 if target == "float32" else 2), trips)
    return replace(made, low=replace(made.low, casts=casts))


def test_casts_back_and_forth_are_counted_in_bytes():
    one_way = casts_of(("float32", "float16", 40_000, 4, 0))
    assert RULES["AMP303"](one_way) == []
    undone = casts_of(("float16", "float32", 1000, 2, 0), ("float32", "float16", 9000, 4, 2))
    # The island: 1000 elements up and down, 6 bytes each. Undone: 2 of 4 calls that write 18,000 bytes.
    assert RULES["AMP303"](undone)[0].numbers["bytes"] == 9000
    island = casts_of(("float16", "float32", 3000, 1, 0), ("float32", "float16", 9000, 1, 0))
    assert RULES["AMP303"](island)[0].numbers["bytes"] == 18_000
    small = casts_of(("float16", "float32", 10, 1, 0), ("float32", "float16", 10, 1, 1))
    assert RULES["AMP303"](small) == []


def test_no_scale_fits_names_both_sides():
    # fp16 has 40 octaves from its smallest to its largest number, of which the smallest few keep too few bits.
    made = built(
        [Layer("large", gradient=10.0, spread=0.5), Layer("small", gradient=-32.0, spread=0.5)], log2_scale=0
    )
    found = RULES["AMP203"](replace(made, outcomes={"settled": Outcome(0, grad_error=0.5)}))
    assert [site.module for site in found[0].sites] == ["large", "small"]
    numbers = found[0].numbers
    assert numbers["underflows_below"] - numbers["overflows_from"] + 1 == numbers["missing_octaves"]
    assert numbers["missing_octaves"] > 5
    assert RULES["AMP203"](replace(made, outcomes={"settled": Outcome(0, grad_error=0.05)})) == []
    assert str(RULES["AMP203"](made)[0].severity) == "info"
    near = built(
        [Layer("large", gradient=12.0, spread=0.5), Layer("small", gradient=0.0, spread=0.5)], log2_scale=0
    )
    assert RULES["AMP203"](near) == []


if __name__ == "__main__":
    MANUAL.write_text(with_rules(MANUAL.read_text(encoding="utf-8")), encoding="utf-8")
