"""A recorded step is the same step, and nothing of the recorder stays behind, however the step ends."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transparency import REPRESENTATIVE, differences, options
from witness import (
    Witness,
    bits,
    installed,
    left_behind,
    model_bits,
    module_hooks_of,
    random_bits,
    seed,
)

from ampcheck.errors import StepError
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import Step, casting_rules, run
from ampcheck.run.audit import audit
from ampcheck.targets import load
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings

QUICK = Settings(verify=False)


@contextmanager
def nothing_left(model: nn.Module) -> Iterator[None]:
    """Fail if the block leaves anything in the process or the model."""
    things, hooks, numbers = installed(), module_hooks_of(model), model_bits(model)
    yield
    assert left_behind(things, installed()) == []
    assert module_hooks_of(model) == hooks
    assert model_bits(model) == numbers


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("spec", REPRESENTATIVE)
def test_a_recorded_step_is_the_same_step(spec):
    target = load(spec, options(spec))
    with nothing_left(target.model):
        wrong, compared, operations = differences(target)
    assert wrong == []
    assert compared > 50
    assert operations > 100


class Net(nn.Module):
    def __init__(self, fail: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2, self.fail = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2), fail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return self.fc2(self.fail(F.dropout(self.bn(self.fc1(x)), 0.3)))


def target(model: nn.Module) -> Target:
    return Target("net", model, [torch.randn(4, 8)], lambda m, b: m(b).square().mean())


def interrupted(_: torch.Tensor) -> torch.Tensor:
    raise KeyboardInterrupt


def exited(_: torch.Tensor) -> torch.Tensor:
    raise SystemExit(3)


def raised(_: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


FAILURES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], type[BaseException]]] = {
    "raises in the forward": (raised, StepError),
    "interrupted in the forward": (interrupted, KeyboardInterrupt),
    "exits in the forward": (exited, SystemExit),
    "raises in the backward": (lambda x: Bad.apply(x, ValueError("no")), StepError),
    "interrupted in the backward": (lambda x: Bad.apply(x, KeyboardInterrupt()), KeyboardInterrupt),
    "shape mismatch": (lambda x: x @ x, StepError),
}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_audit_leaves_everything_as_it_was(precision, steps):
    case = target(Net())
    numbers, state = bits(case.batches[0]), random_bits()
    with nothing_left(case.model):
        found = audit(case, Settings(precision=precision, steps=steps))
    assert len(found.low.steps) == steps
    assert (bits(case.batches[0]), random_bits()) == (numbers, state)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_audit_leaves_everything_as_it_was(failure):
    fail, kind = FAILURES[failure]
    case = target(Net(fail))
    numbers, state = bits(case.batches[0]), random_bits()
    with nothing_left(case.model), pytest.raises(kind):
        audit(case, QUICK)
    assert (bits(case.batches[0]), random_bits()) == (numbers, state)
    after = target(Net())
    with nothing_left(after.model):
        assert audit(after, QUICK).low.failure is None


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_recorder_is_gone_when_the_block_raises(error):
    model = Net()

    def fail() -> None:
        with Recorder(model):
            model.fc1(torch.ones(2, 8))
            raise error

    with nothing_left(model), pytest.raises(error):
        fail()


def test_gradients_that_were_there_come_back():
    case = target(Net())
    case.model.fc1.weight.grad = torch.full((8, 8), -0.0)
    with nothing_left(case.model):
        audit(case, QUICK)
    assert torch.signbit(case.model.fc1.weight.grad).all()


def test_entering_a_recorder_inside_itself_changes_nothing():
    model, x = Net(), torch.ones(2, 8)

    def run() -> None:
        model.fc1(x)

    with nothing_left(model):
        once, nested = Recorder(model), Recorder(model)
        with once:
            run()
        with nested, nested, nested:
            run()
        with nested:
            run()
    one, three = (r.trace(r.fetch()) for r in (once, nested))
    assert three.operations == 2 * one.operations
    assert {s: v + v for s, v in one.sites.items()} == dict(three.sites)


def test_two_recorders_at_once_see_the_same():
    model, x = Net(), torch.ones(2, 8)
    outer, inner = Recorder(model), Recorder(model)
    with nothing_left(model), outer, inner:
        model.fc1(x)
    first, second = (r.trace(r.fetch()) for r in (outer, inner))
    # What the inner one measures with is no operation of the model.
    assert dict(first.sites) == dict(second.sites)
    assert first.operations == second.operations


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_done_to_audit_a_step_is_no_operation_of_it(compiled):
    model, x = Net(), torch.ones(2, 8)

    def loss(model, x):
        return model.fc1(x).sum()

    alone, audited = (Recorder(model, compiled=compiled) for _ in range(2))
    with alone:
        loss(model, x).backward()
    run(Step(model, x, loss), audited, None)
    one, other = (recorder.trace(recorder.fetch()) for recorder in (alone, audited))
    assert one.operations == other.operations


def test_no_tensor_is_kept_alive():
    alive: list[weakref.ref[torch.Tensor]] = []
    most: list[int] = []

    class Watched(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                x = x * 1.01  # no gradient: nothing but the recorder could keep one
                alive.append(weakref.ref(x))
                most.append(sum(ref() is not None for ref in alive))
            return x

    model = Watched()
    gc.disable()
    try:
        with Recorder(model, samples=8) as recorder:
            model(torch.ones(1000))
        assert max(most) <= 2
        assert [ref for ref in alive if ref() is not None] == []
    finally:
        gc.enable()
    recorder.fetch()


def test_activations_die_with_the_step():
    kept: list[weakref.ref[torch.Tensor]] = []
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for layer in model:
        layer.register_forward_hook(lambda _, __, out: kept.append(weakref.ref(out)))
    recorder = Recorder(model, samples=8)
    gc.disable()
    try:
        with recorder:
            model(torch.ones(4, 8)).sum().backward()
        assert len(kept) == 3
        assert [ref for ref in kept if ref() is not None] == []
    finally:
        gc.enable()


def test_a_failed_audit_keeps_no_tensor_alive():
    seen: list[weakref.ref[torch.Tensor]] = []

    def fail(x: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(x))
        return x.masked_fill(x > 0, -1e9)

    case = target(Net(fail))
    found = audit(case, QUICK)
    assert found.low.failure is not None
    gc.collect()
    assert [ref for ref in seen if ref() is not None] == []


def test_no_random_number_is_drawn():
    model = Net().eval()
    seed()
    before = random_bits()
    with Recorder(model, samples=64) as recorder:
        model.fc1(torch.ones(100, 8)).sum().backward()
    recorder.fetch()
    assert random_bits() == before


def test_the_same_operations_run_with_the_recorder():
    """The recorder adds no operation of its own to those that run, nor takes one away."""
    found: list[Any] = []
    for record in (False, True):
        model = Net()
        witness = Witness()
        # The witness lies below: it sees what the recorder runs.
        with witness:
            if record:
                with Recorder(model):
                    model(torch.ones(4, 8)).sum().backward()
            else:
                model(torch.ones(4, 8)).sum().backward()
        found.append({key: counts.numel for key, counts in witness.seen.results.items()})
    assert {key: found[1].get(key) for key in found[0]} == found[0]


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_casting_rules_leave_nothing(dtype):
    before = installed()
    with pytest.raises(RuntimeError), casting_rules(torch.device("cpu"), dtype):
        raise RuntimeError
    assert left_behind(before, installed()) == []


def test_a_recorder_dies_with_its_last_name():
    """No cycle: the rows it wrote are given back at once, not when the collector comes by."""
    model = Net()
    gc.collect()
    gc.disable()
    try:
        recorder = Recorder(model, samples=8)
        with recorder:
            model(torch.ones(4, 8)).sum().backward()
        recorder.fetch()
        dead = weakref.ref(recorder)
        del recorder
        assert dead() is None
    finally:
        gc.enable()
