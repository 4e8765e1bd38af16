"""Merging ranks: nothing is lost, grouping and order are all one, what cannot be added is refused."""

import random
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path

import pytest
from builders import finding, report
from examples import NASTY, cnn, forward_overflow, planned, two_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcheck.cli import main
from ampcheck.compare.merge import merge
from ampcheck.diagnose.rules import RULES
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import from_json, read, to_json, write
from ampcheck.values.doubts import Doubt, DoubtKind
from ampcheck.values.findings import How, Severity, Suppressed
from ampcheck.values.loop import Loop
from ampcheck.values.maker import Maker
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.trace import Constant, ErrorJump, Failure, Trace, UpdateLoss


def some(draw, items, least=0):
    return tuple(draw.sample(items, draw.randint(least, len(items))))


def part(seed: int) -> Report:
    """Return a report with something in every field, in an order of its own."""
    draw = random.Random(seed)
    layers = list(some(draw, cnn()[:5], 2))
    made = report([replace(layer, activation=draw.uniform(-3, 15)) for layer in layers])
    sites = list(made.low.sites)
    found = tuple(
        finding(
            draw.choice(sites),
            draw.choice(["AMP101", "AMP104", "AMP999"]),
            severity=draw.choice(list(Severity)),
            message=draw.choice("xyz"),
        )
        for _ in range(4)
    )
    outcome = Outcome(
        16, loss_nonfinite=draw.random() < 0.3, grad_error=draw.choice([0.1, 0.5, float("nan")])
    )
    verdict = Claim(draw.choice(["keep a", "keep b"]), draw.choice(list(Tried)))
    plan = Plan(
        "fp16",
        some(draw, ["a", "b", "c"]),
        some(draw, ["n.py:9", "n.py:10"]),
        ScalerPlan(2.0 ** draw.randint(3, 9)),
    )
    low = replace(
        made.low,
        failure=draw.choice([None, Failure("ValueError", draw.choice("ab"))]),
        constants=tuple(Constant(site, 1e-8) for site in some(draw, sites)),
        not_audited={"a": draw.randint(0, 3)},
        steps=made.low.steps * draw.randint(0, 3),
    )
    return replace(
        made,
        low=low,
        findings=found[:2],
        suppressed=tuple(Suppressed(one, draw.choice(list(How)), draw.choice("ab")) for one in found[2:]),
        refused_scales=some(draw, [20, 19, 18]),
        notes=some(draw, list(NASTY[:4])),
        environment={"device": draw.choice(["A", "B"]), draw.choice("xy"): "1"},
        outcomes={draw.choice(["settled", "bf16"]): outcome},
        error_jumps=tuple(ErrorJump(site, 0.1, 0.5, site) for site in some(draw, sites)),
        doubts=tuple(
            Doubt(kind, (name,), "n.py", 9, 0.1)
            for kind in some(draw, [DoubtKind.GIVEN, DoubtKind.ADDED])
            for name in "ab"
        ),
        makers=tuple(Maker(name, "n.py", 9) for name in some(draw, ["a", "b"])),
        updates=tuple(UpdateLoss(name, 9, draw.randint(0, 9)) for name in some(draw, ["w", "b"])),
        plan=draw.choice([None, plan, plan]),
        claims=(verdict,),
        patch=draw.choice(["", "p"]),
        advice=some(draw, ["one", "two"]),
    )


def rounded(made: Report) -> Report:
    """Return a report with its float sums to nine digits: they add with the rounding of doubles."""

    def near(value):
        return float(f"{value:.9g}")

    def trace(held):
        return replace(
            held, sites={s: replace(v, sum_squares=near(v.sum_squares)) for s, v in held.sites.items()}
        )

    sums = ("error_squares", "error_sum", "reference_squares", "cross")
    return replace(
        made,
        reference=trace(made.reference),
        low=trace(made.low),
        errors={
            s: replace(e, **{name: near(getattr(e, name)) for name in sums}) for s, e in made.errors.items()
        },
        outcomes={name: repr(outcome) for name, outcome in made.outcomes.items()},  # NaN is not itself
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_grouping_and_order_are_all_one(seed):
    parts = {name: part(seed + index) for index, name in enumerate(("rank2", "rank10", "rank1"))}
    whole = rounded(merge(parts))
    assert [rank.name for rank in whole.ranks] == ["rank1", "rank2", "rank10"]
    for a, b, c in permutations(parts):
        pair = merge({a: parts[a], b: parts[b]})
        assert rounded(merge({"pair": pair, c: parts[c]})) == whole
        assert rounded(merge({c: parts[c], "pair": pair})) == whole


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_nothing_is_lost(seed):
    parts = {f"rank{index}": part(seed + index) for index in range(3)}
    whole = merge(parts)
    for run in ("reference", "low"):
        traces = [getattr(made, run) for made in parts.values()]
        merged = getattr(whole, run)
        for site in {site for trace in traces for site in trace.sites}:
            held = [trace.sites[site] for trace in traces if site in trace.sites]
            assert merged.sites[site].numel == sum(one.numel for one in held)
            assert dict(merged.sites[site].exponents()) == {
                exponent: sum(dict(one.exponents()).get(exponent, 0) for one in held)
                for exponent, _ in merged.sites[site].exponents()
            }
            assert merged.sites[site].amax == max(one.amax for one in held)
        assert merged.steps == tuple(step for trace in traces for step in trace.steps)
        assert {module.path for module in merged.modules} == {m.path for t in traces for m in t.modules}
        assert sum(count.bytes for count in merged.casts.values()) == sum(
            count.bytes for trace in traces for count in trace.casts.values()
        )
    assert sum(e.sampled for e in whole.errors.values()) == sum(
        e.sampled for made in parts.values() for e in made.errors.values()
    )
    assert {note for made in parts.values() for note in made.notes} == set(whole.notes)
    for name, made in parts.items():
        for found in made.findings:
            alike = [
                one
                for one in whole.findings
                if one.code == found.code and one.origin.place == found.origin.place
            ]
            assert any(name in one.ranks and one.severity.rank <= found.severity.rank for one in alike)
        assert whole.worst.rank <= made.worst.rank


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_no_field_of_a_part_is_forgotten(seed):
    bare = Report("model.py", "fp16", 16, Trace(), Trace())
    full = replace(part(seed), loop=Loop(()), plan=Plan("fp16"), patch="")
    whole = merge({"a": bare, "b": full})
    for field in fields(Report):
        if getattr(full, field.name) != getattr(bare, field.name) and field.name != "advice":
            assert getattr(whole, field.name) != getattr(bare, field.name), field.name


def test_the_loop_of_the_rank_that_came_furthest_is_shown():
    parts = {name: replace(part(0), loop=Loop((), steps=steps)) for name, steps in [("a", 1), ("b", 2)]}
    assert merge(parts).loop.steps == 2
    assert merge(dict(reversed(parts.items()))).loop.steps == 2


def test_findings_say_on_which_ranks_they_are():
    made = two_ranks()
    assert [(found.code, found.ranks) for found in made.findings] == [
        ("AMP101", ("rank1",)),
        ("AMP201", ("rank0",)),
    ]
    same = merge({"a": forward_overflow(), "b": forward_overflow()})
    assert [found.ranks for found in same.findings] == [("a", "b")]


def test_findings_keep_the_order_of_the_rules():
    codes = list(RULES)
    site = next(iter(report(cnn()).low.sites))
    made = replace(report(cnn()), findings=tuple(finding(site, code) for code in reversed(codes)))
    assert [found.code for found in merge({"a": made}).findings] == codes[::-1]  # a part stays as it is
    assert [found.code for found in merge({"a": made, "b": made}).findings] == codes


def test_plans_that_differ_are_put_together_and_not_called_tried():
    a, b = planned(), replace(planned(), plan=Plan("fp16", ("head",), (), ScalerPlan(2.0**10)))
    made = merge({"a": a, "b": b})
    assert made.plan == Plan(
        "fp16",
        ("blocks.1.attn", "head"),
        ("losses.py:7", "model.py:60"),
        ScalerPlan(2.0**10, growth_interval=2000),
    )
    assert Claim("the plans of all ranks, put together", Tried.NOT_TRIED) in made.claims
    assert merge({"a": a, "b": a}).claims == tuple(sorted(a.claims, key=lambda verdict: verdict.claim))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"precision": "bf16"}, "got precision fp16 in a and bf16 in b"),
        ({"target": "other.py"}, "got target 'model.py' in a and 'other.py' in b"),
        ({"log2_scale": 15}, "got loss scale 2^16 in a and 2^15 in b"),
    ],
)
def test_what_does_not_belong_together_is_refused(change, told):
    made = report(cnn()[:2])
    with pytest.raises(ReportError, match=told.replace("^", r"\^")):
        merge({"a": made, "b": replace(made, **change)})


def test_a_rank_counts_once():
    made = report(cnn()[:2])
    pair = merge({"a": made, "b": made})
    with pytest.raises(ReportError, match="expected every rank once, got 'b' again in b"):
        merge({"pair": pair, "b": made})
    with pytest.raises(ReportError, match="at least one report"):
        merge({})


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, made in (("a", forward_overflow()), ("b", report(cnn()))):
        Path(folder).mkdir()
        write(Path(folder) / "r.json", to_json(made))
    assert main(["merge", "a/r.json", "b/r.json", "-o", "whole.json"]) == 0
    whole = read("whole.json")
    assert whole == merge({"a/r": forward_overflow(), "b/r": report(cnn())})
    assert from_json(to_json(whole)) == whole
    assert main(["show", "whole.json"]) == 1
    assert "2 ranks" in capsys.readouterr().out
    assert main(["merge", "a/r.json", "a/r.json"]) == 2
    assert "expected every report once, got 'a/r.json' twice" in capsys.readouterr().err
    Path("a/r.json").rename("rank0.json")
    Path("b/r.json").rename("rank1.json")
    assert main(["merge", "rank0.json", "rank1.json", "-o", "whole.json"]) == 0
    assert main(["merge", "whole.json", "rank0.json", "-o", "more.json"]) == 2
    assert "expected every rank once, got 'rank0' again in rank0" in capsys.readouterr().err
    assert not Path("more.json").exists()
