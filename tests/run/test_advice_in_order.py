"""What is to be changed, each at its own line and in the order that heals: what others did as it was printed."""

import runpy

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(train, *given, **named):
    """Return the errors that a training has by ampcheck, and what it returns."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        done = train(*given, **named)
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR], done


def clean(grad):
    """Hide what is not finite, in a hook."""
    return torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)


def hooked(*, hooks):
    """Train with a loss so large that its gradients overflow at GradScaler's first scale; return whether it learns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    first = model[0].weight.detach().clone()
    for parameter in model.parameters() if hooks else ():
        parameter.register_hook(clean)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(16):
        x = torch.randn(64, 8)
        with torch.autocast("cuda", torch.float16):
            loss = (model(x).float() - 3).square().sum()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return not torch.equal(model[0].weight.detach(), first)


def test_a_hook_that_hides_an_overflow_from_the_scaler_is_named_where_it_does_so():
    errors, learns = errors_of(hooked, hooks=True)
    assert not learns
    assert (errors[0].code, errors[0].origin.line) == ("AMP202", line_of(clean, "nan_to_num"))
    assert "leave inf and NaN as they are" in errors[0].fix[0]
    without, learns = errors_of(hooked, hooks=False)  # as is advised
    assert learns
    assert without == []


RESUMED = """
import torch


def compact(state):
    if isinstance(state, torch.Tensor):
        return state.half() if state.numel() > 1 else state
    if isinstance(state, dict):
        return {key: compact(value) for key, value in state.items()}
    return [compact(value) for value in state] if isinstance(state, list) else state


torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
for turn in range(2):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    if turn:
        optimizer.load_state_dict(saved)
    for _ in range(5):
        with torch.autocast("cuda", torch.bfloat16):
            loss = 1e-3 * model(torch.randn(16, 8)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not turn:
        saved = compact(optimizer.state_dict())
"""


def test_the_one_line_that_casts_is_where_a_checkpoint_loses_its_numbers(tmp_path):
    script = tmp_path / "resumed.py"
    script.write_text(RESUMED, encoding="utf-8")
    errors, names = errors_of(runpy.run_path, str(script))
    assert all(not one["exp_avg_sq"].any() for one in names["saved"]["state"].values())
    assert [one.code for one in errors] == ["AMP504"]
    lines = [
        number for number, text in enumerate(RESUMED.splitlines(), 1) if ".half()" in text or "load_" in text
    ]
    assert [site.line for site in errors[0].sites] == lines
    assert errors[0].fix[0].startswith(f"# {errors[0].origin.location}: exp_avg_sq in FP32")


class Link(torch.autograd.Function):
    """Sends gradients in another precision."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.dtype).to(grad.dtype), None


def linked(dtype):
    """Train two stages in bf16 with small gradients, which are sent from one to the other."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], 1e-3, eps=1e-16)
    for _ in range(8):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.bfloat16):
            loss = 1e-7 * F.mse_loss(second(Link.apply(first(x), dtype)).float(), x[:, :4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return bool(first.weight.grad.any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_gradient_that_is_cast_twice_at_a_line_becomes_zero_there(dtype):
    errors, reaches = errors_of(linked, dtype)
    assert reaches is (dtype is torch.float32)
    line = line_of(Link.backward, "grad.to(")
    assert [(one.code, one.origin.line) for one in errors] == ([] if reaches else [("AMP201", line)])


def scaled_beside():
    """A second loss without a scale, whose gradients the scaler divides all the same."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cuda", 2.0**12)
    for _ in range(6):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss, penalty = model(x).float().square().mean(), model(-x).float().abs().mean()
        scaler.scale(loss).backward()
        penalty.backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_loss_is_called_by_its_own_name():
    errors, _ = errors_of(scaled_beside)
    found = next(one for one in errors if one.code == "AMP408")
    assert found.fix == ("scaler.scale(penalty).backward()",)


def deep(*, whole):
    """Two layers of one line whose gradients overflow in float16 at any scale from 1 on, beside small ones."""
    torch.manual_seed(0)
    trunk, density, other = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(8, 1)
    optimizer = torch.optim.Adam([*trunk.parameters(), *density.parameters(), *other.parameters()], 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(40):
        x = torch.randn(2048, 8)
        with torch.autocast("cuda", torch.float16), torch.autocast("cuda", torch.float16, enabled=not whole):
            count = density(torch.relu(trunk(x))).sum()
        with torch.autocast("cuda", torch.float16):
            loss = (count - 2e3).square() + 1e-3 * F.mse_loss(other(x), x[:, :1])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


def test_where_gradients_overflow_all_along_a_line_all_of_it_is_to_be_in_fp32():
    errors, scale = errors_of(deep, whole=False)
    assert scale < 1.0
    found = next(one for one in errors if one.code == "AMP206")
    assert found.fix[1] == "    ...  # this line, with .float() on what is read"
    errors, scale = errors_of(deep, whole=True)  # as is advised
    assert scale >= 1.0
    assert "AMP206" not in [one.code for one in errors]
