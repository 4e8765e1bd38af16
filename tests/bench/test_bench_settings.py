"""The settings of a sweep: what --compile, --channels-last and --checkpointing do to a step."""

import shutil
from functools import partial

import pytest
import torch
from bench_models import perceptron
from torch import nn

from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.settings import compiled, put
from ampcheck.errors import TargetError
from ampcheck.targets.spec import Target

COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")


def without_code_in_c(monkeypatch):
    """Compile as far as graphs, forward and backward: what a C++ compiler makes of them takes it half a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_compiled_step_is_compiled_and_comes_to_the_same(name, monkeypatch):
    if name == "bf16":
        without_code_in_c(monkeypatch)
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    losses = {}
    for compile_it in (True, False):
        target = compiled(perceptron(), Case(16, compiled=compile_it))
        arm = Arm(target, precision(name))
        with arm.running():
            losses[compile_it] = [float(arm.train().detach()) for _ in range(3)]
        graphs = counters["stats"]["unique_graphs"]
        assert graphs == 1, "one graph for all three steps, none for the step that is not compiled"
    assert losses[True] == pytest.approx(losses[False], rel=2e-2 if name == "bf16" else 1e-5)


def test_every_row_of_a_compiled_case_is_timed(monkeypatch):
    without_code_in_c(monkeypatch)
    request = Request(("fp32", "amp", "bf16"), ("time",), compiled=("on",), budget=0.1)
    case = Bencher(perceptron, request).run(Bench("p")).cases[0]
    assert case.key == "batch 16, compiled"
    assert all(row.time for row in case.rows), [row.message for row in case.rows]
    assert case.again


def test_channels_last_reaches_the_model_and_its_batch():
    def make():
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        return Target(
            "images",
            model,
            [(torch.randn(2, 4, 8, 8), torch.ones(2))],
            lambda model, batch: model(batch[0]).mean(),
        )

    target = put(make(), Case(2, channels_last=True))
    seen = []
    for module in target.model:
        module.register_forward_hook(lambda module, args, out: seen.extend([args[0], out]))
    arm = Arm(target, precision("fp32"))
    with arm.running():
        arm.train()
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in seen)
    assert not any(tensor.is_contiguous() for tensor in seen)
    weights = [module.weight for module in target.model if hasattr(module, "weight")]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert put(make(), Case(2)).batch(0)[0].is_contiguous()


def test_a_checkpointed_step_comes_to_the_same_and_runs_its_blocks_twice():
    def make():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            block = lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))  # noqa: E731
            model = nn.Sequential(block(), block(), nn.Linear(8, 1))
            batch = torch.randn(4, 8)
        return Target("blocks", model, [batch], lambda model, batch: model(batch).square().mean())

    runs, losses = {}, {}
    for again in (True, False):
        target = put(make(), Case(4, checkpointing=again))
        calls = runs[again] = []
        target.model[0][0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        arm = Arm(target, precision("fp32"))
        with arm.running():
            losses[again] = [float(arm.train().detach()) for _ in range(3)]
    assert (len(runs[True]), len(runs[False])) == (6, 3)
    assert losses[True] == losses[False]


def test_checkpointing_needs_something_to_checkpoint():
    with pytest.raises(TargetError, match="leave --checkpointing out"):
        put(perceptron(), Case(4, checkpointing=True))
