"""What the user's code raises is reported at its line: in the FP32 run as an error, later as a finding."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.errors import StepError
from ampcheck.observe.failure import is_out_of_memory
from ampcheck.observe.step import StepRaised
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings

QUICK = Settings(verify=False)
HERE = "tests/observe/test_failure.py"


def line_of(mark: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (found,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
    return found


class Part(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fc, self.function = nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.fc(x))


def target(function: Callable[[torch.Tensor], torch.Tensor], loss: Any = None) -> Target:
    model = nn.Sequential(nn.Linear(8, 8), Part(function))
    return Target("x", model, [torch.randn(4, 8)], loss or (lambda m, b: m(b).float().square().mean()))


def masked(x):
    return x.masked_fill(x > 0, -1e9)  # masked


def put(x):
    bank = torch.zeros(4, 8)
    bank[torch.arange(4)] = x  # put
    return bank


def lerp(x):
    return torch.zeros(4, 8).lerp(x, 0.5)  # lerp


def banned(x):
    return F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x))  # banned


def reduced(x):
    return torch.zeros(4, 8).scatter_reduce(0, torch.zeros(4, 8, dtype=torch.long), x, "sum")  # reduced


def product(x):
    return x @ torch.eye(8, dtype=torch.float64).float().bmm(x)  # never


def solve(x):
    return torch.linalg.inv(x[:4, :4] + 10 * torch.eye(4).to(x.dtype))  # solve


class Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.zeros_like(grad).index_put((torch.arange(4),), x)  # backward put


def mixed(x):
    return Mixed.apply(x)


@pytest.mark.parametrize(
    ("function", "op", "mark", "text"),
    [
        (masked, "masked_fill", "masked", "without overflow"),
        (put, "index_put", "put", "dtypes match"),
        (lerp, "lerp", "lerp", "dtype"),
        (banned, "binary_cross_entropy", "banned", "unsafe to autocast"),
        (reduced, "scatter_reduce", "reduced", "dtype"),
        (solve, "linalg_inv_ex", "solve", "Half"),
        (mixed, "index_put", "backward put", "dtype"),
    ],
)
def test_what_only_low_precision_raises_is_a_finding(function, op, mark, text):
    found = audit(target(function), QUICK)
    failure = found.low.failure
    assert failure is not None
    assert (failure.module, failure.op, failure.location) == ("1", op, f"{HERE}:{line_of(mark)}")
    assert text in failure.message
    finding = next(f for f in found.findings if f.code == "AMP301")
    assert finding.kind == "dtype-error"
    (site,) = finding.sites
    assert (site.module, site.op, site.location) == ("1", op, failure.location)
    assert found.reference.failure is None
    assert found.reference.sites


def shapes(x):
    return x @ x  # shapes


def explicit(x):
    raise ValueError("a\nb")  # explicit


def inner(x):
    return F.layer_norm(x, (3,))  # inner


@pytest.mark.parametrize(
    ("function", "kind", "text", "mark"),
    [
        (shapes, "RuntimeError", "shapes cannot be multiplied", "shapes"),
        (explicit, "ValueError", "a", "explicit"),
        (inner, "RuntimeError", "normalized_shape", "inner"),
    ],
)
def test_what_the_reference_raises_is_an_error_at_the_users_line(function, kind, text, mark):
    with pytest.raises(StepRaised) as caught:
        audit(target(function), QUICK)
    failure = caught.value.failure
    assert (failure.kind, failure.module, failure.location) == (kind, "1", f"{HERE}:{line_of(mark)}")
    assert text in failure.message
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{HERE}:{line_of(mark)}: {kind}: ")
    assert caught.value.hint == ""


def test_an_error_in_the_loss_belongs_to_no_module():
    def loss(model, batch):
        return F.cross_entropy(model(batch), torch.zeros(3, dtype=torch.long))  # in the loss

    with pytest.raises(StepRaised) as caught:
        audit(target(lambda x: x, loss), QUICK)
    failure = caught.value.failure
    assert (failure.module, failure.op, failure.line) == ("", "cross_entropy_loss", line_of("in the loss"))


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2  # forward of it

    @staticmethod
    def backward(ctx, grad):
        return grad.view(-1)[:3] @ grad  # in the backward


def test_an_error_in_a_users_backward_is_found_there():
    with pytest.raises(StepRaised) as caught:
        audit(target(Backward.apply), QUICK)
    assert caught.value.failure.line == line_of("in the backward")


def test_an_error_in_torchs_backward_is_found_at_the_line_of_the_forward():
    def loss(model, batch):
        y = model(batch)
        return (y * y.detach().clone()).sum() + Saved.apply(y).sum()

    with pytest.raises(StepRaised) as caught:
        audit(target(lambda x: x, loss), QUICK)
    assert caught.value.failure.line == line_of("saved")


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.mm(grad, grad)  # saved


def raising(error: BaseException) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x):
        raise error

    return function


NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda e: type(e).__name__)
def test_running_out_of_memory_suggests_a_smaller_batch(error):
    with pytest.raises(StepRaised) as caught:
        audit(target(raising(error)), QUICK)
    assert "--batch-size" in caught.value.hint


def test_a_real_allocation_that_fails_is_recognised():
    def loss(model, batch):
        return torch.empty(2**46).sum() + model(batch).sum()  # huge

    with pytest.raises(StepRaised) as caught:
        audit(target(lambda x: x, loss), QUICK)
    assert caught.value.out_of_memory
    assert caught.value.failure.line == line_of("huge")


def test_out_of_memory_in_the_low_precision_run_is_no_dtype_error():
    def function(x):
        if torch.is_autocast_enabled():
            raise NO_MEMORY[0]
        return x

    with pytest.raises(StepRaised, match="out of memory"):
        audit(target(function), QUICK)


def test_other_errors_are_not_about_memory():
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda m, b: 3.0, "expected loss\\(model, batch\\) to return a tensor, got float"),
        (lambda m, b: m(b), "use .mean"),
        (lambda m, b: m(b).detach().sum(), "is the model frozen"),
        (lambda m, b: m(b).sum().long(), "torch.int64"),
    ],
)
def test_a_loss_of_the_wrong_kind_is_explained(loss, text):
    with pytest.raises(StepError, match=text):
        audit(target(lambda x: x, loss), QUICK)


def test_an_error_in_the_optimizer_is_the_users():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no step")  # broken step

    case = target(lambda x: x)
    broken = Target("x", case.model, case.batches, case.loss, lambda m: Broken(m.parameters(), 0.1))
    with pytest.raises(StepRaised, match="no step") as caught:
        audit(broken, Settings(steps=2, verify=False))
    assert caught.value.failure.line == line_of("broken step")


def test_an_exception_the_model_handles_is_no_failure():
    def careful(x):
        try:
            return masked(x)
        except RuntimeError:
            return x.masked_fill(x > 0, -1e4)

    with warnings.catch_warnings(action="error"):
        found = audit(target(careful), QUICK)
    assert found.low.failure is None
    assert not [f for f in found.findings if f.code == "AMP301"]
