"""Every operation is put down to the right module, line and phase, with the right numbers."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from witness import Counts

from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import casting_rules
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Trace

HERE = "tests/observe/test_recorder.py"


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight  # scale


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale, self.out = nn.Linear(8, 8), Scale(), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)  # call fc
        x = F.softmax(x, -1)  # functional
        x = self.scale(x)
        x = checkpoint(self.again, x, use_reentrant=False)
        for _ in range(3):
            x = torch.sin(x)  # loop
        return self.out(x)  # call out

    def again(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)  # checkpointed


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out = model(x)
    return out.square().mean()  # loss


def line_of(mark: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
    return found


def record(model: nn.Module, x: torch.Tensor, dtype: torch.dtype | None = None, steps: int = 1) -> Trace:
    recorder = Recorder(model, execute=execute)
    for _ in range(steps):
        with casting_rules(torch.device("cpu"), dtype), recorder:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                value = loss(model, x)
            value.backward()
    return recorder.trace(recorder.fetch())


@pytest.fixture(scope="module")
def trace() -> Trace:
    torch.manual_seed(0)
    return record(Parent(), torch.randn(4, 8))


@pytest.mark.parametrize(
    ("op", "phase", "module", "mark"),
    [
        ("_softmax", Phase.FORWARD, "", "functional"),
        ("_softmax_backward_data", Phase.BACKWARD, "", "functional"),
        ("mul", Phase.FORWARD, "scale", "scale"),
        ("sin", Phase.FORWARD, "", "loop"),
        ("cos", Phase.BACKWARD, "", "loop"),
        ("exp", Phase.FORWARD, "", "checkpointed"),
        ("exp", Phase.RECOMPUTE, "", "checkpointed"),
        ("mean", Phase.FORWARD, "", "loss"),
        ("pow", Phase.FORWARD, "", "loss"),
    ],
)
def test_an_operation_belongs_to_its_line(trace, op, phase, module, mark):
    found = {(s.module, s.file, s.line) for s in trace.sites if s.op == op and s.phase is phase}
    assert found == {(module, HERE, line_of(mark))}


def test_operations_of_torchs_own_modules_belong_to_the_line_that_calls_them(trace):
    found = {(s.module, s.line) for s in trace.sites if s.op == "addmm"}
    assert found == {("fc", line_of("call fc")), ("out", line_of("call out"))}
    backward = {(s.module, s.line) for s in trace.sites if s.op == "mm" and s.phase is Phase.BACKWARD}
    assert backward == {("fc", line_of("call fc")), ("out", line_of("call out"))}


def test_every_backward_operation_has_a_line_of_the_forward(trace):
    strange = [s for s in trace.sites if s.phase is Phase.BACKWARD and not s.file]
    # The gradient of the loss itself, one, is ampcheck's own.
    assert [s.op for s in strange] in ([], ["ones_like"])


def test_a_line_that_runs_again_is_one_site(trace):
    (stats,) = (stats for site, stats in trace.sites.items() if site.op == "sin")
    assert stats.numel == 3 * 4 * 8


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_backward_of_a_recomputed_line_belongs_to_it(reentrant):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return checkpoint(lambda t: torch.tanh(self.fc(t)), x, use_reentrant=reentrant)

    traced = record(nn.Sequential(nn.Linear(8, 8), Model(), Model()), torch.randn(4, 8))
    forward = {s.module: s.line for s in traced.sites if s.op == "tanh" and s.phase is Phase.FORWARD}
    again = {s.module: s.line for s in traced.sites if s.op == "tanh" and s.phase is Phase.RECOMPUTE}
    backward = {s.module: s.line for s in traced.sites if s.op == "tanh_backward"}
    assert set(forward) == {"1", "2"}
    assert forward == again == backward


def test_steps_add_up():
    torch.manual_seed(0)
    model, x = Parent(), torch.randn(4, 8)
    one = record(model, x)
    model.zero_grad()
    three = record(model, x, steps=3)
    assert list(three.sites) == list(one.sites)
    for site, stats in one.sites.items():
        assert three.sites[site].counts == tuple(3 * count for count in stats.counts)
        assert three.sites[site].zeros == 3 * stats.zeros


def test_the_numbers_are_those_of_a_plain_run():
    torch.manual_seed(0)
    model, x = Parent(), torch.randn(4, 8)
    plain: dict[tuple[str, str], Counts] = {}

    def keep(key: tuple[str, str]) -> Any:
        def add(tensor: torch.Tensor) -> None:
            plain.setdefault(key, Counts()).add(tensor.detach())

        return add

    def crossed(name: str, given: torch.Tensor, out: torch.Tensor) -> None:
        keep((name, "input[0]"))(given)
        keep((name, "output"))(out)

    handles = [
        module.register_forward_hook(lambda _, given, out, name=name: crossed(name, given[0], out))
        for name, module in model.named_modules()
    ]
    loss(model, x).backward()
    for handle in handles:
        handle.remove()
    for name, parameter in model.named_parameters():
        keep((name, "grad"))(parameter.grad)
    model.zero_grad()
    traced = record(model, x)
    boundaries = {(s.module, s.slot): stats for s, stats in traced.sites.items() if not s.op}
    assert set(boundaries) == {key for key in plain if key[1] != "grad"}
    for key, stats in boundaries.items():
        assert (stats.numel, stats.zeros, stats.amax) == (plain[key].numel, plain[key].zeros, plain[key].amax)


class Casts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)  # casts three
        y = y.float()  # widens
        y = y.half()  # and back
        return y.float()


def test_casts_are_counted_with_their_bytes_and_round_trips():
    traced = record(Casts(), torch.randn(4, 8), torch.float16)
    forward = {(c.source, c.target, c.line): n for c, n in traced.casts.items() if c.phase is Phase.FORWARD}
    narrow = forward["float32", "float16", line_of("casts three")]
    assert (narrow.calls, narrow.elements, narrow.bytes) == (3, 4 * 8 + 8 * 8 + 8, 2 * (4 * 8 + 8 * 8 + 8))
    widen = forward["float16", "float32", line_of("widens")]
    assert (widen.calls, widen.bytes, widen.round_trips) == (1, 4 * 8 * 4, 0)
    back = forward["float32", "float16", line_of("and back")]
    assert (back.calls, back.bytes, back.round_trips) == (1, 4 * 8 * 2, 1)


def test_a_weight_is_cast_once_a_step_as_autocast_caches_it():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(self.fc(x))

    traced = record(Twice(), torch.randn(4, 8), torch.float16)
    narrow = [n for c, n in traced.casts.items() if (c.target, c.phase) == ("float16", Phase.FORWARD)]
    assert sum(n.elements for n in narrow) == 4 * 8 + 8 * 8 + 8


def test_dtypes_are_those_that_ran():
    traced = record(Parent(), torch.randn(4, 8), torch.float16)
    dtypes = {site.op: site.dtype for site in traced.sites if site.phase is Phase.FORWARD and site.op}
    assert dtypes["addmm"] == "float16"
    assert dtypes["_softmax"] == "float32"


def test_nothing_is_measured_twice():
    """A module's output is its last operation's result: read once, counted for both."""
    model, x = nn.Sequential(Scale()), torch.ones(4, 8)
    with Recorder(model) as recorder, torch.no_grad():
        model(x)
    traced = recorder.trace(recorder.fetch())
    found = {(s.module, s.op, s.slot): stats for s, stats in traced.sites.items()}
    assert list(found) == [
        ("", "", "input[0]"),
        ("0", "", "input[0]"),
        ("0", "mul", "output"),
        ("0", "", "output"),
        ("", "", "output"),
    ]
    assert found["0", "mul", "output"] == found["0", "", "output"] == found["", "", "output"]
    assert traced.measured == 2


def test_a_view_of_a_part_is_not_taken_for_the_whole():
    class Part(nn.Module):
        def forward(self, x):
            return (x * 2)[:, :3]

    model, x = Part(), torch.ones(4, 8)
    with Recorder(model) as recorder:
        model(x)
    sites = recorder.trace(recorder.fetch()).sites
    sizes = {(s.op, s.slot): stats.numel for s, stats in sites.items()}
    assert sizes == {("mul", "output"): 32, ("", "output"): 12, ("", "input[0]"): 32}


def test_a_tensor_written_to_after_it_was_measured_is_read_again():
    class Late(nn.Module):
        def forward(self, x):
            y = x * 2
            with torch.no_grad():
                y[0] = 0.0
            return y

    model = Late()
    with Recorder(model) as recorder:
        model(torch.ones(4, 8))
    sites = recorder.trace(recorder.fetch()).sites
    zeros = {(s.op, s.slot): stats.zeros for s, stats in sites.items()}
    assert zeros["", "output"] == 8
    assert zeros["mul", "output"] == 0


def test_long_steps_settle_without_losing_a_call():
    model = nn.Identity()

    def loop(x: torch.Tensor) -> None:
        for _ in range(5000):
            x = torch.neg(x)

    twos = torch.full((3,), 2.0)
    with Recorder(model, samples=4) as recorder:
        loop(twos)
    (stats,) = recorder.trace(recorder.fetch()).sites.values()
    assert stats == TensorStats(1, (15000,), amax=2.0, sum_squares=60000.0)
