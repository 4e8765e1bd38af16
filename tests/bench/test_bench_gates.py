"""Gates and comparisons: each with a case that fails it, and one that it cannot judge."""

import dataclasses
import math

import pytest
from test_bench_result import course, example, rows, time

from ampcheck.bench.compare import compare
from ampcheck.bench.gates import Gates, broken
from ampcheck.bench.result import Bench, Case, Closeness, Memory, OneStep, Row
from ampcheck.errors import AmpcheckError


def test_gates_are_ratios_and_name_the_figures():
    bench = example()
    assert broken(Gates(), bench) == ()
    assert broken(Gates(1.5, 0.8, 0.05), dataclasses.replace(bench, cases=(without(bench, "fp16"),))) == ()
    texts = broken(Gates(5.0, 0.5, 0.0), bench)
    assert any("amp is 2." in text or "amp is 1.9" in text for text in texts)
    assert "batch 8: amp needs 0.75 times the memory of FP32, expected at most 0.5" in texts
    assert any("amp trains to a training loss of 1.011, FP32 to 1.01" in text for text in texts)


@pytest.mark.parametrize(
    ("gates", "what"),
    [
        (Gates(min_speedup=0.1), "speed"),
        (Gates(max_memory=9.0), "memory"),
        (Gates(max_loss=9.0), "training"),
    ],
)
def test_a_gate_without_a_value_fails_and_says_why(gates, what):
    bench = example()
    (raised,) = broken(gates, bench)
    assert raised.startswith(f"batch 8: the {what} of fp16 cannot be judged: it does not run (a.py:3")
    bare = dataclasses.replace(bench.cases[0], rows=(Row("fp32"), Row("amp")), parts=())
    (unasked,) = broken(gates, dataclasses.replace(bench, cases=(bare,)))
    part = {"speed": "time"}.get(what, what)
    assert unasked == f"batch 8: the {what} of amp cannot be judged: the part '{part}' was not measured"
    alone = dataclasses.replace(bench.cases[0], rows=bench.cases[0].rows[:1])
    (nothing,) = broken(gates, dataclasses.replace(bench, cases=(alone,)))
    assert nothing == "the gates cannot be judged: no precision was measured beside FP32"


def without(bench, name):
    case = bench.cases[0]
    return dataclasses.replace(case, rows=tuple(row for row in case.rows if row.precision != name))


def test_comparing_a_bench_with_itself_changes_nothing():
    changes = compare(example(), example())
    assert {change.word for change in changes} == {"same", "no difference measured"}
    assert not any(change.failed for change in changes)


def test_a_change_for_the_worse_is_seen():
    old = example()
    case = old.cases[0]
    slow = dataclasses.replace(
        rows(old)["amp"], time=time(2.0, 1), memory=Memory(rows(old)["fp32"].memory.predicted)
    )
    new = dataclasses.replace(old, cases=(dataclasses.replace(case, rows=(*case.rows[:2], slow)),))
    found = {change.what: change for change in compare(old, new)}
    assert found["batch 8: amp, × as fast"].word == "slower"
    assert found["batch 8: amp, × memory"].failed == "batch 8: amp, × memory was 0.75 and is 1.00 now"
    assert found["batch 8: amp, trained"].word == "same"
    better = {change.what: change for change in compare(new, old)}
    assert {change.word for change in better.values()} == {"faster", "less memory", "same"}
    assert not any(change.failed for change in better.values())


def test_what_is_missing_beside_an_older_bench_fails():
    old = example()
    gone = dataclasses.replace(old, cases=(without(old, "amp"),))
    assert [change.failed for change in compare(old, gone) if change.failed] == [
        "batch 8: amp was measured and is missing now"
    ]
    assert len([change for change in compare(old, dataclasses.replace(old, cases=())) if change.failed]) == 3
    amp = dataclasses.replace(rows(old)["amp"], time=None)
    part = dataclasses.replace(
        old, cases=(dataclasses.replace(old.cases[0], rows=(*old.cases[0].rows[:2], amp)),)
    )
    (found,) = (change.failed for change in compare(old, part) if change.failed)
    assert found.startswith("batch 8: amp, × as fast was ")
    assert found.endswith("and is missing now")


def test_benches_of_other_targets_devices_or_settings_are_not_compared():
    old = dataclasses.replace(example(), settings={"steps": "30"})
    with pytest.raises(AmpcheckError, match="name the same target"):
        compare(old, dataclasses.replace(old, target="other.py"))
    other = dataclasses.replace(old, environment={"device": "NVIDIA H100"}, settings={"steps": "60"})
    assert [change.failed for change in compare(old, other)][:2] == [
        "the device was CPU and is NVIDIA H100 now",
        "the setting steps was 30 and is 60 now",
    ]


def alone(bench, **more):
    """Return FP32 and amp, amp with some of its fields replaced."""
    case = without(bench, "fp16")
    base, amp = case.rows
    return dataclasses.replace(
        bench, cases=(dataclasses.replace(case, rows=(base, dataclasses.replace(amp, **more))),)
    )


def failures(old, new):
    return [change.failed for change in compare(old, new) if change.failed]


EVERY = Gates(0.1, 9.0, 9.0)


@pytest.mark.parametrize("who", ["fp32", "amp"])
def test_what_was_measured_before_a_row_failed_is_no_result(who):
    bench = alone(example())
    assert broken(EVERY, bench) == ()
    case = bench.cases[0]
    failed = tuple(
        dataclasses.replace(row, status="oom", message="no room") if row.precision == who else row
        for row in case.rows
    )
    found = broken(EVERY, dataclasses.replace(bench, cases=(dataclasses.replace(case, rows=failed),)))
    it = "it" if who == "amp" else "FP32"
    assert list(found) == [
        f"batch 8: the {what} of amp cannot be judged: {it} does not run (no room)"
        for what in ("speed", "memory", "training")
    ]


def test_a_sweep_over_inference_cannot_be_held_to_a_loss():
    bench = alone(example())
    case = dataclasses.replace(bench.cases[0], mode="infer")
    both = dataclasses.replace(bench, cases=(*bench.cases, case))
    assert broken(Gates(max_loss=9.0), both) == (
        "batch 8, infer: the training cannot be judged: in inference nothing is trained",
    )
    assert broken(Gates(0.1, 9.0), both) == ()


def test_random_labels_are_not_held_to_a_loss():
    bench = dataclasses.replace(alone(example()), random_labels=True)
    assert broken(Gates(max_loss=0.5), bench) == (
        "batch 8: the training of amp cannot be judged: the labels are random",
    )


def test_too_few_runs_are_not_held_to_a_loss():
    """The mean is within the limit; what more runs would have shown is not known to be."""
    base = example().cases[0].rows[0]
    spread = alone(example(), courses=tuple(course(seed, 1.0 + 0.2 * (seed - 1)) for seed in range(3)))
    (found,) = broken(Gates(max_loss=0.05), spread)
    assert found.startswith(
        "batch 8: the training of amp cannot be judged: after 3 runs its training loss may be up to "
    )
    assert found.endswith(" worse, expected at most 5.0%; more --seeds narrow it")
    one = dataclasses.replace(base, courses=base.courses[:1]), Row("amp", courses=(course(0, 1.0),))
    bench = Bench("x", (Case(8, rows=one, parts=("training",)),), margin=0.02)
    assert broken(Gates(max_loss=0.5), bench) == (
        "batch 8: the training of amp cannot be judged: one run shows no difference; more --seeds do",
    )


def test_skipped_updates_are_not_held_to_a_speed():
    amp = rows(example())["amp"]
    skipping = alone(example(), time=dataclasses.replace(amp.time, skipped=2))
    (found,) = broken(Gates(min_speedup=0.1), skipping)
    assert found == "batch 8: the speed of amp cannot be judged: 2 timed updates were skipped"
    assert failures(alone(example()), skipping)[0].startswith("batch 8: amp, × as fast was ")


def test_one_round_is_not_held_to_a_speed():
    few = alone(example(), time=time(0.5, rounds=1))
    (found,) = broken(Gates(min_speedup=0.1), few)
    assert "[0.00, inf], expected at least 0.1" in found
    (compared,) = failures(alone(example()), few)
    assert compared.endswith("[0.00, inf] now")


def test_gradients_that_got_worse_are_seen():
    """Nothing else of a comparison looks at a single step: a lost gradient passed where nothing was trained."""

    def found(error):
        step = OneStep("fp64", 1.0, 0.0, None, Closeness(error, 1.0, 0.0))
        return alone(example(), one_step=step)

    assert failures(found(0.01), found(1.0)) == [
        "batch 8: amp, error was gradients 1.0 % and is gradients 100 % now"
    ]
    assert failures(found(0.01), found(math.nan)) == [
        "batch 8: amp, error was gradients 1.0 % and is gradients not finite now"
    ]
    assert failures(found(0.01), alone(example())) == [
        "batch 8: amp, error was gradients 1.0 % and is missing now"
    ]
    for before, now in ((0.01, 0.012), (1e-9, 5e-5), (1.0, 0.01), (math.nan, math.nan), (math.nan, 0.1)):
        assert failures(found(before), found(now)) == []


def test_a_comparison_without_a_figure_fails():
    bench = alone(example())
    empty = dataclasses.replace(bench, cases=())
    assert failures(empty, bench) == ["a figure to compare was asked for and is missing now"]
    bare = dataclasses.replace(bench, cases=(Case(8, rows=(Row("fp32"), Row("amp"))),))
    assert failures(bare, bench) == ["a figure to compare was asked for and is missing now"]


def test_fp32_that_does_not_run_any_more_is_seen():
    bench = alone(example())
    case = bench.cases[0]
    base, amp = case.rows
    broke = dataclasses.replace(
        bench, cases=(dataclasses.replace(case, rows=(dataclasses.replace(base, status="raised"), amp)),)
    )
    assert "batch 8: fp32, status was ok and is raised now" in failures(bench, broke)


def test_settings_that_an_older_bench_did_not_save_are_not_taken_for_the_same():
    bench = alone(example())
    found = failures(bench, dataclasses.replace(bench, settings={"steps": "30"}))
    assert found == ["the setting steps was not saved and is 30 now"]
