"""Benches as values: saved and loaded, judged."""

import dataclasses
import json
import math
import random
import re
import statistics

import pytest

from ampcheck.bench import saved
from ampcheck.bench.confirmed import confirmation
from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench, Case, Closeness, Memory, OneStep, Row, Split, Time, TrainingCurve
from ampcheck.bench.table import caveats, headings, legend, lines
from ampcheck.bench.verdicts import judgement, speed, verdict
from ampcheck.errors import ReportError


def time(scale=1.0, seed=0, rounds=15, noise=0.02):
    draw = random.Random(seed)
    return Time(tuple(scale * math.exp(draw.gauss(0, noise)) for _ in range(rounds)), 4)


def course(seed, loss, **more):
    return TrainingCurve(seed, more.pop("status", "ok"), (2.0, loss), loss, **more)


def example():
    split = Split(4000, {"parameters": 1000, "activations": 3000}, {"fc<1>": 2000, "": 500}, "backward", 1000)
    base = Row("fp32", time=time(), memory=Memory(split, cpu_peak=5000),
               courses=tuple(course(seed, 1.0 + seed / 100) for seed in range(3)),
               one_step=OneStep("fp64", 1.0, 1e-8, Closeness(1e-7, 1.0, 0.0), Closeness(1e-7, 1.0, 0.0)))  # fmt: skip
    amp = Row("amp", time=time(0.5, 1), memory=Memory(dataclasses.replace(split, peak_bytes=3000)), scale=1024.0,
              settling=6, courses=tuple(course(seed, 1.001 + seed / 100) for seed in range(3)))  # fmt: skip
    fp16 = Row("fp16", status="raised", message="a.py:3: RuntimeError: <b>no</b>\x1b[31m|",
               courses=tuple(course(seed, math.nan, status="diverged") for seed in range(3)))  # fmt: skip
    case = Case(
        8, rows=(base, fp16, amp), again=time(seed=2), notes=("other work used 40% of the processors",)
    )
    case = dataclasses.replace(case, parts=("time", "memory", "training"))
    return Bench("net.py:<script>", (case,), "ampcheck bench net.py", 0.02, environment={"device": "CPU"})


def rows(bench):
    return {row.precision: row for row in bench.cases[0].rows}


def test_a_saved_bench_comes_back():
    bench = example()
    text = saved.to_json(bench)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert saved.to_json(saved.from_json(text)) == text
    found = rows(saved.from_json(text))["fp16"]
    assert math.isnan(found.courses[0].final_loss)
    assert found.message == rows(bench)["fp16"].message


def test_what_an_older_file_lacks_has_its_default():
    data = json.loads(saved.to_json(example()))
    del data["fingerprint"], data["cases"][0]["reasons"], data["cases"][0]["rows"][0]["largest_batch"]
    assert saved.from_json(json.dumps(data)).fingerprint == ""


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ampcheck_bench": 99}', '{"ampcheck_bench": 1, "target": 3}', '{"ampcheck_bench": 1}',
             '{"ampcheck_bench": 1, "target": "a", "cases": [{"batch_size": "x"}]}'],
)  # fmt: skip
def test_a_damaged_file_is_an_error_to_act_on(text):
    with pytest.raises(ReportError, match="expected a bench"):
        saved.from_json(text)


def test_a_formula_does_not_get_into_a_spreadsheet():
    text = saved.to_csv([{"a": "=1+1", "b": math.nan, "c": None, "d": -0.5, "e": "@x"}])
    assert text == "a,b,c,d,e\n'=1+1,,,-0.5,'@x\n"


def test_a_row_is_judged_by_its_interval_and_the_noise_floor():
    bench = example()
    case, amp = bench.cases[0], rows(bench)["amp"]
    found = speed(case, amp)
    assert found.word == "faster"
    assert found.interval.low < 2 < found.interval.high
    noisy = dataclasses.replace(case, again=time(0.4, 3))  # FP32 seems 2.5 times as fast as itself
    assert speed(noisy, amp).word == "no difference measured"


def test_identical_precisions_do_not_differ_on_a_busy_machine():
    """Simulated: rounds that drift by a third, blocks that jump, 400 identical pairs."""
    alarms = 0
    for trial in range(400):
        draw = random.Random(trial)
        slow = [math.exp(draw.gauss(0, 0.3)) for _ in range(11)]

        def lane(draw=draw, slow=slow):
            return Time(
                tuple(d * math.exp(draw.gauss(0, 0.1)) * (2 if draw.random() < 0.1 else 1) for d in slow), 1
            )

        base, other, again = lane(), lane(), lane()
        case = Case(1, rows=(Row("fp32", time=base), Row("amp", time=other)), again=again)
        alarms += speed(case, case.rows[1]).word != "no difference measured"
    assert alarms <= 20, "one in twenty"


@pytest.mark.parametrize("rounds", [10, 40])
def test_the_difference_that_would_be_seen_is_seen_in_four_of_five_simulated_benches(rounds):
    def found(trial, slower):
        draw = random.Random(trial)
        drift = [math.exp(draw.gauss(0, 0.3)) for _ in range(rounds)]
        base, other, again = (
            Time(tuple(share * d * math.exp(draw.gauss(0, 0.03)) for d in drift), 1)
            for share in (1, slower, 1)
        )
        case = Case(1, rows=(Row("fp32", time=base), Row("amp", time=other)), again=again)
        return speed(case, case.rows[1])

    promised = statistics.median(found(trial, 1).seen_from for trial in range(40))
    seen = sum(found(100 + trial, 1 + promised).word == "slower" for trial in range(100))
    assert 65 <= seen <= 95


def test_the_verdict_says_what_its_rounds_would_have_shown():
    case = Case(8, rows=(Row("fp32", time=time(seed=4)), Row("bf16", time=time(seed=5))), again=time(seed=6))
    text = verdict(Bench("net.py", (case,)), case, case.rows[1])
    shown = re.fullmatch(
        r"on this CPU same speed within noise \((\d+\.?\d*) % would be seen in 15 rounds\)", text
    )
    assert float(shown[1]) == round(100 * speed(case, case.rows[1]).seen_from, 1)
    few = Case(8, rows=tuple(Row(row.precision, time=Time(row.time.samples[:1], 1)) for row in case.rows))
    said = verdict(Bench("net.py", (few,)), few, few.rows[1])
    assert said == "on this CPU same speed within noise (1 round would not show twice the speed)"


def test_training_is_judged_over_paired_seeds():
    bench = example()
    case = bench.cases[0]
    found = judgement(bench, case, rows(bench)["amp"])
    assert found.word == "equivalent"
    assert found.margin == pytest.approx(0.02 * 1.01)
    assert found.difference.estimate == pytest.approx(0.001)
    assert judgement(bench, case, rows(bench)["fp16"]).word == "fails"
    alone = dataclasses.replace(rows(bench)["amp"], courses=rows(bench)["amp"].courses[:1])
    one = dataclasses.replace(
        case, rows=(dataclasses.replace(case.rows[0], courses=case.rows[0].courses[:1]), alone)
    )
    assert judgement(bench, one, alone).word == "undecided"


def test_a_metric_is_better_when_larger():
    base = Row("fp32", courses=tuple(course(seed, 1.0, metric=0.9 + seed / 1000) for seed in range(3)))
    bad = Row("amp", courses=tuple(course(seed, 0.5, metric=0.1 + seed / 1000) for seed in range(3)))
    case = Case(8, rows=(base, bad))
    found = judgement(Bench("x", (case,), margin=0.02), case, bad)
    assert (found.word, found.measure) == ("worse", "metric"), "its loss came down, so it is not stuck"
    assert found.difference.estimate == pytest.approx(0.8)


def test_verdicts_say_what_stands_against_a_row_first():
    bench = example()
    case = bench.cases[0]
    said = {name: verdict(bench, case, row) for name, row in rows(bench).items()}
    assert said["fp32"] == "the reference"
    assert said["fp16"] == "does not run"
    assert said["amp"].startswith("0.75× memory, training loss equivalent within ±0.02, on this CPU ")
    assert said["amp"].endswith("as fast")
    gpu = dataclasses.replace(bench, environment={"device": "NVIDIA H100"})
    assert verdict(gpu, case, rows(bench)["amp"]).endswith(
        "0.75× memory, training loss equivalent within ±0.02"
    )


def test_a_lost_gradient_is_the_verdict():
    """It read "no difference measured": the loss hardly moves in a few steps, the gradient is gone."""
    bench = example()
    case, amp = bench.cases[0], rows(bench)["amp"]
    error = Closeness(1.0, 0.0, 0.0)
    lost = dataclasses.replace(amp, one_step=OneStep("fp64", 1.0, 0.0, None, error))
    assert verdict(bench, case, lost) == "gradients are lost: error 100 %"
    small = dataclasses.replace(
        amp, one_step=OneStep("fp64", 1.0, 0.0, None, dataclasses.replace(error, relative_rms=0.01))
    )
    assert "gradient error 1.0 %" in verdict(bench, case, small)


def test_random_labels_are_no_accuracy():
    bench = dataclasses.replace(example(), random_labels=True)
    case, amp = bench.cases[0], rows(bench)["amp"]
    said = verdict(bench, case, amp)
    assert "accuracy not judged (random labels)" in said
    assert "equivalent" not in said
    assert headings(bench)["training"].startswith("training loss (random labels)")


def test_identical_runs_count_once_and_decide_nothing():
    """A file that seeds itself gives every seed the same run: "trains better" was said of no variance at all."""
    base = Row("fp32", courses=tuple(course(seed, 1.0) for seed in range(5)))
    amp = Row("amp", courses=tuple(course(seed, 0.9) for seed in range(5)))
    case = Case(8, rows=(base, amp))
    bench = Bench("x", (case,), margin=0.02)
    found = judgement(bench, case, amp)
    assert (found.word, found.seeds, found.repeated) == ("undecided", 1, 4)
    assert verdict(bench, case, amp) == "training loss undecided (n = 1)"


def test_the_margin_is_never_widened_by_the_spread_of_the_seeds():
    base = Row("fp32", courses=tuple(course(seed, 1.0 + seed / 3) for seed in range(3)))
    amp = Row("amp", courses=tuple(course(seed, 1.06 + seed / 3 + seed / 100) for seed in range(3)))
    case = Case(8, rows=(base, amp))
    found = judgement(Bench("x", (case,), margin=0.02), case, amp)
    assert found.margin == pytest.approx(0.02 * (1 + 1 / 3))
    assert found.word == "worse"
    assert "would have been seen" in found.statement


def test_a_row_whose_timed_updates_were_skipped_says_that_it_cannot_be_compared():
    bench = example()
    case = bench.cases[0]
    amp = rows(bench)["amp"]
    skipping = dataclasses.replace(amp, time=dataclasses.replace(amp.time, skipped=2))
    assert "2 timed updates were skipped: not comparable" in verdict(bench, case, skipping)
    assert "skipped" not in verdict(bench, case, amp)


def test_a_request_knows_its_own():
    request = Request(
        precisions=("amp",), batch_sizes=(8, 32), modes=("train", "infer"), checkpointing=(False, True)
    )
    assert request.rows == ("fp32", "amp")
    assert [case.key for case in request.cases()] == [
        "batch 8", "batch 8, checkpointing", "batch 8, infer", "batch 32", "batch 32, checkpointing",
        "batch 32, infer",
    ]  # fmt: skip
    assert request.fingerprint("a") != request.fingerprint("b")
    with pytest.raises(ValueError, match="expected precisions of fp32"):
        Request(precisions=("fp8",))
    with pytest.raises(ValueError, match="expected a margin above zero"):
        Request(margin=-1)


def test_on_a_gpu_the_report_says_how_far_off_the_prediction_was():
    mib = 1024 * 1024
    split = Split(90 * mib, {}, {}, "backward")
    memory = Memory(split, cuda_allocated=100 * mib, cuda_reserved=128 * mib, cuda_retries=2)
    assert caveats(example(), Case(8, rows=(Row("fp32", memory=memory),))) == (
        "fp32: 100 MiB allocated at the peak on the GPU, 128 MiB reserved",
        "fp32: 90 MiB were predicted, -10.0% of what was allocated",
        "fp32: the allocator had to retry 2 times",
    )


def test_without_a_gpu_the_report_says_what_one_has_confirmed_of_its_prediction():
    said = [text for text in legend(example()) if text.endswith(confirmation("memory"))]
    assert len(said) == 1
    gpu = dataclasses.replace(example(), environment={"device": "NVIDIA H100"})
    assert not any(confirmation("memory") in text for text in legend(gpu))
    assert headings(example())["memory"] == "CUDA peak, predicted, MiB"
    assert headings(gpu)["memory"] == "CUDA peak, measured, MiB"


def test_a_predicted_peak_is_not_held_against_a_measured_one():
    split = Split(100 * 1024 * 1024, {}, {}, "backward")
    both, one = Memory(split, cuda_allocated=2 * split.peak_bytes), Memory(split)
    gpu = dataclasses.replace(example(), environment={"device": "NVIDIA H100"})
    for low, ratio, shown in ((both, 1.0, "200"), (one, 1.0, "100 (predicted)")):
        case = Case(8, rows=(Row("fp32", memory=both), Row("amp", memory=low)))
        assert case.memory_ratio(case.rows[1]) == ratio
        assert [line["memory"] for line in lines(gpu, case)] == ["200", shown]
    case = Case(8, rows=(Row("fp32", memory=both), Row("amp", memory=Memory(cuda_allocated=50))))
    assert case.memory_ratio(case.rows[1]) == 50 / both.cuda_allocated
    case = Case(8, rows=(Row("fp32", memory=one), Row("amp", memory=Memory(cuda_allocated=50))))
    assert case.memory_ratio(case.rows[1]) is None
