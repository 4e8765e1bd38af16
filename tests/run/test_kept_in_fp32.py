"""FP32 numbers that a script keeps beside its models, and that half precision has a share in."""

import copy

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.script.state.untrained import sums
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def audited(train, *given):
    """Return the errors that a training has by ampcheck, and what it returns."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        out = train(*given)
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR], out


class Curvature:
    """Divides each row of a layer's gradient by how large the gradients of its outputs are, on average."""

    def __init__(self, layer, *, wide):
        self.layer, self.wide, self.kept = layer, wide, {}
        layer.register_full_backward_hook(self.note)

    def note(self, layer, _inputs, grads):
        grad = grads[0].detach() / 1024.0
        grad = grad.float() if self.wide else grad
        now = (grad * grad).mean(0).float()
        old = self.kept.get(layer)
        self.kept[layer] = now if old is None else 0.9 * old + 0.1 * now

    @torch.no_grad()
    def divide(self):
        by = (self.kept[self.layer] + 1e-12).sqrt()
        self.layer.weight.grad.div_(by[:, None])


def descends(*, wide):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    curvature = Curvature(model[2], wide=wide)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cuda", 1024.0)
    for _ in range(12):
        inputs = torch.randn(64, 8)
        with torch.autocast("cuda", torch.float16):
            loss = 0.01 * (model(inputs).float() - inputs[:, :4]).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        curvature.divide()
        scaler.step(optimizer)
        scaler.update()
    return curvature.kept[model[2]]


@pytest.mark.parametrize("wide", [False, True])
def test_gradients_that_kept_numbers_change_are_followed_with_those_that_fp32_would_have_kept(wide):
    errors, kept = audited(lambda: descends(wide=wide))
    assert bool(kept.all()) is wide  # squares of small gradients are zero in float16
    assert [one.code for one in errors] == ([] if wide else ["AMP421"])
    for error in errors:
        assert error.origin.line == line_of(Curvature.note, "(grad * grad)")
        assert "is computed in half precision here, and the gradient is changed by it" in error.message
        assert ".float()" in error.fix[0]


def importances(model, *, wide):
    """Squared gradients of a copy in half precision, added up in FP32 in a pass over data."""
    frozen, sums = copy.deepcopy(model).half(), [torch.zeros_like(one) for one in model.parameters()]
    for _ in range(64):
        loss = (1e-2 * frozen(torch.randn(16, 8).half()).float()).square().mean()
        for at, grad in enumerate(torch.autograd.grad(loss, list(frozen.parameters()))):
            sums[at] += (grad.float() if wide else grad).square() / 64
    return sums


def measures(*, wide):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", 1024.0)
    for _ in range(8):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(16, 8)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return importances(model, wide=wide)


@pytest.mark.parametrize("wide", [False, True])
def test_fp32_sums_of_what_underflows_in_a_pass_of_autograd_grad_are_an_error(wide):
    errors, sums = audited(lambda: measures(wide=wide))
    assert (float((sums[0] == 0).float().mean()) > 0.5) is not wide  # most squares are zero in float16
    assert [one.code for one in errors] == ([] if wide else ["AMP504"])
    for error in errors:
        assert error.origin.line == line_of(importances, "sums[at] +=")
        assert "is held in FP32, and what is added to it is computed in half precision" in error.message


def test_sums_are_looked_for_beside_tensors_of_inference_which_have_no_version():
    with torch.inference_mode():
        shown = torch.zeros(4)
    total = torch.zeros(4)
    total += 1.0
    found = sums()
    assert any(one is total for one in found)
    assert not any(one is shown for one in found)
