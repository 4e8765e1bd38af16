"""The bench at work: scalers that settle, orders that turn, accuracy and training against independent loops."""

import dataclasses
import math
import time

import pytest
import torch
import torch.utils.benchmark
from bench_models import perceptron
from torch import nn

from ampcheck.bench.request import Request
from ampcheck.bench.result import AGAIN, Bench
from ampcheck.bench.running.accuracy import Golden, closeness
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import as_cuda_casts, as_it_is, precision
from ampcheck.bench.running.rounded import to_tf32
from ampcheck.bench.running.timing import Lane, interleave, turned
from ampcheck.targets.spec import Target
from ampcheck.values.plan import Plan, ScalerPlan


def state(arm):
    return [tensor.detach().clone() for tensor in arm.held()]


def test_an_fp32_step_is_the_loop_a_person_writes():
    target = perceptron()
    arm = Arm(perceptron(), precision("fp32"))
    optimizer = torch.optim.Adam(target.model.parameters(), lr=1e-2)
    with arm.running():
        for _ in range(5):
            arm.train()
    for _ in range(5):
        optimizer.zero_grad()
        target.loss(target.model, target.batch(0)).backward()
        optimizer.step()
    for ours, theirs in zip(arm.target.model.parameters(), target.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_an_amp_step_with_clipping_is_torchs_recipe():
    target = perceptron()
    arm = Arm(perceptron(), precision("amp"), as_it_is, clip=0.1)
    optimizer, scaler = torch.optim.Adam(target.model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu")
    with arm.running():
        for _ in range(3):
            arm.train()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = target.loss(target.model, target.batch(0))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(target.model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    assert arm.scaler.get_scale() == scaler.get_scale()
    for ours, theirs in zip(arm.target.model.parameters(), target.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def large(size=None, seed=0):
    """A loss so large that the scaler has to come down a long way."""
    return perceptron(size, seed, factor=2.0**9)


def test_a_scaler_settles_before_anything_is_timed():
    arm = Arm(large(), precision("amp"), as_it_is)
    with arm.running():
        settled = arm.settle()
        assert settled.ok
        assert settled.skipped > 0
        assert settled.scale == 2.0**16 / 2**settled.skipped
        before = arm.applied
        for _ in range(4):
            arm.train()
        assert arm.applied - before == 4
    steps = {int(state["step"]) for state in arm.optimizer.state.values()}
    assert steps == {5 + 4}, "five applied in a row, then four"


def adamw(*, fused):
    return lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("interval", [1, 2, 3, 2000])
def test_skipped_updates_are_counted_whatever_the_growth_interval(interval, fused):
    """A scale that grows again at once hides its skips: before and after look the same."""
    target = perceptron(factor=2.0**9, optimizer=adamw(fused=fused))
    arm = Arm(target, precision("amp"), as_it_is)
    arm.scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    lane, steps = Lane("amp", arm.train, arm), 24
    expected = 0
    with arm.running():
        arm.train()
        arm.settle()
        for _ in range(steps):
            before = arm.target.model[0].weight.detach().clone()
            lane.steps = 1
            lane.sample()
            expected += torch.equal(before, arm.target.model[0].weight)
    assert lane.skipped == expected
    assert (expected > 0) == (interval < 2000)


def test_a_loss_that_no_scale_fits_never_settles():
    arm = Arm(perceptron(factor=1e30), precision("amp"), as_it_is)
    with arm.running():
        settled = arm.settle()
    assert not settled.ok
    assert settled.skipped == 40


def test_every_lane_runs_once_a_round_and_no_order_is_preferred():
    names = list("abcd")
    orders = [turned(names, index) for index in range(8)]
    assert all(sorted(order) == names for order in orders)
    for first in names:
        assert sum(order[0] == first for order in orders) == 2
        for second in names:
            before = sum(order.index(first) < order.index(second) for order in orders)
            assert first == second or before == 4


def lanes(names):
    made = []
    for name in names:
        arm = Arm(perceptron(), precision("fp32"))
        made.append(Lane(name, arm.train, arm))
    return made


@pytest.fixture
def one_thread():
    """Threads that wait for each other on a busy machine take many times as long now and then."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_step_takes_as_long_as_torchs_own_timer_says():
    """Others share the processors, so one of five tries has to agree; a wrong clock would fail them all."""
    ratios = []
    for _ in range(5):
        made = lanes(["fp32", AGAIN])
        interleave(made, 0.0)
        arm = made[0].arm
        with arm.running():
            timer = torch.utils.benchmark.Timer("step()", globals={"step": arm.train})
            theirs = timer.blocked_autorange(min_run_time=0.5)
        ratios.append(min(made[0].samples) / min(theirs.times))
        if 0.8 < ratios[-1] < 1.25:
            break
    assert 0.8 < ratios[-1] < 1.25, f"seconds of a step over torch's: {ratios}"


def test_blocks_of_a_round_are_samples_of_a_round():
    made = lanes(["fp32", "x", AGAIN])
    orders = interleave(made, 0.0).orders
    assert len(orders) == 4  # as few as there are, where there is no time
    assert {len(lane.samples) for lane in made} == {4}


def test_a_slow_lane_gets_fewer_rounds_and_is_not_left_out():
    made = lanes(["fp32", "slow", AGAIN])
    made[1].step = lambda: time.sleep(0.3)
    interleave(made, 0.5)
    assert {len(lane.samples) for lane in made} == {4}
    assert made[1].result().median > 0.3


def test_a_lane_that_raises_leaves_the_others_their_samples():
    made = lanes(["fp32", "bad", AGAIN])
    calls = iter(range(100))

    def step():
        if next(calls) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    made[1].step = step
    done = interleave(made, 0.0)
    ((lane, error),) = done.raised
    assert (lane.name, error.out_of_memory) == ("bad", True)
    assert error.__cause__.__traceback__ is None, "its frames would keep the model in memory"
    assert [len(lane.samples) for lane in made] == [4, 0, 4]


@pytest.mark.parametrize(
    "value", [1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-12, -3.14159265, 1e-30, 65504.0]
)
def test_tf32_keeps_ten_bits(value):
    found = float(to_tf32(torch.tensor([value]))[0])
    mantissa, exponent = math.frexp(float(torch.tensor(value)))
    scaled = abs(mantissa) * 2**11
    nearest = math.floor(scaled + 0.5)  # ties away from zero
    assert found == math.copysign(nearest * 2.0 ** (exponent - 11), value)


def test_tf32_leaves_what_is_not_finite():
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    assert torch.equal(to_tf32(odd).nan_to_num(7.0), odd.nan_to_num(7.0))


def test_closeness_is_what_its_names_say():
    found = closeness([(torch.tensor([3.0, 4.0]).double(), torch.tensor([3.0, 5.0]).double())])
    assert found.relative_rms == pytest.approx(1 / math.sqrt(34))
    assert found.cosine == pytest.approx(29 / (5 * math.sqrt(34)))
    assert found.bias == pytest.approx(-0.5 / math.sqrt(17))


def test_errors_of_one_step_have_the_size_of_the_format():
    golden = Golden(perceptron)
    errors = {name: golden.compare(precision(name)) for name in ("fp32", "tf32", "amp", "bf16")}
    assert golden.reference == "fp64"
    found = {name: step.gradients.relative_rms for name, step in errors.items()}
    assert found["fp32"] < 2.0**-20
    assert 2.0**-16 < found["tf32"] < 2.0**-9
    assert 2.0**-14 < found["amp"] < 2.0**-8
    assert found["amp"] < found["bf16"] < 2.0**-5
    assert errors["fp32"].outputs.relative_rms < 2.0**-20


def test_a_gradient_that_is_zero_but_for_rounding_has_no_relative_error():
    """A batch norm takes the bias before it away again: "worst gradient (166,803,200,000 %)" was its error."""

    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))
            batch = torch.randn(64, 16)
        return Target("normed", model, [batch], lambda model, batch: model(batch).square().mean())

    golden = Golden(make)
    bias = golden._seen.gradients["0.bias"]
    weight = golden._seen.gradients["0.weight"]
    assert float(bias.norm()) < 1e-12 * float(weight.norm()), "what was measured against"
    for name in ("fp32", "bf16", "fp16"):
        step = golden.compare(precision(name))
        assert step.worst_error < 0.05
        assert step.worst != "0.bias" or step.worst_error < 1e-6


def test_a_model_that_draws_numbers_is_compared_with_fp32():
    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
            batch = torch.randn(16, 8)
        return Target("dropping", model, [batch], lambda model, batch: model(batch).square().mean())

    golden = Golden(make)
    found = golden.compare(precision("amp")).gradients.relative_rms
    assert found < 0.01, "the same elements were dropped"
    assert golden.compare(precision("fp32")).gradients.relative_rms < 1e-6


def test_a_plan_is_a_row():
    plan = Plan("fp16", fp32_modules=("2",), scaler=ScalerPlan(2.0**10))
    arm = Arm(perceptron(), precision("plan", plan), as_cuda_casts)
    seen = []
    arm.target.model[2].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    arm.target.model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    with arm.running():
        arm.train()
    assert seen == [torch.float16, torch.float32]
    assert arm.scaler.get_scale() == 2.0**10


def test_interrupting_keeps_what_was_done_and_going_on_adds_the_rest():
    kept = []
    request = Request(("fp32",), ("training",), (4, 8), steps=3, seeds=1)

    def make(size, seed):
        if size == 8 and len(kept) == 1:
            raise KeyboardInterrupt
        return perceptron(size, seed)

    first = Bencher(make, request, keep=kept.append).run(Bench("perceptron"))
    assert first.interrupted
    assert [case.batch_size for case in first.cases] == [4]
    assert kept[-1] == first
    whole = Bencher(perceptron, request).run(first)
    assert [case.batch_size for case in whole.cases] == [4, 8]
    assert not whole.interrupted
    assert whole.cases[0] is first.cases[0]


def test_nothing_of_the_random_state_is_used_up():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    def drawing(size, seed):
        target = perceptron(size, seed)
        loss = target.loss
        return dataclasses.replace(target, loss=lambda model, batch: loss(model, batch) + 0 * torch.rand(()))

    Bencher(drawing, Request(steps=2, seeds=1, budget=0.1)).run(Bench("p"))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_predicted_memory_is_the_measured_one():
    from ampcheck.targets import Options, load

    def make(size, seed):
        return load("torchvision:resnet18", Options(batch_size=size or 32, device="cuda", seed=seed))

    bench = Bencher(make, Request(precisions=("fp32", "amp"), parts=("time", "memory"))).run(
        Bench("resnet18")
    )
    for row in bench.cases[0].rows:
        assert row.memory.predicted.peak_bytes == pytest.approx(row.memory.cuda_allocated, rel=0.1)
        assert row.time.device_samples
