"""Half weights with FP32 masters and a loss scale of the script's own: a step that it leaves out is not judged."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def train(window, steps=60):
    """Train; return how many steps were left out, the loss at the end, and the errors found."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).half()
        half = list(model.parameters())
        masters = [nn.Parameter(one.detach().float()) for one in half]
        optimizer = torch.optim.Adam(masters, 1e-2)
        scale, good, left_out = 2.0**22, 0, 0
        for _ in range(steps):
            x = torch.randn(64, 16)
            loss = nn.functional.cross_entropy(model(x.half()).float(), x[:, :4].argmax(1))
            (loss * scale).backward()
            overflow = False
            for m, one in zip(masters, half, strict=True):
                m.grad = one.grad.float() / scale
                overflow |= not m.grad.isfinite().all()
            if overflow:
                scale, good, left_out = scale / 2, 0, left_out + 1
            else:
                good += 1
                optimizer.step()
                with torch.no_grad():
                    for m, one in zip(masters, half, strict=True):
                        one.copy_(m)
            if good and good % window == 0:
                scale *= 2
            for one in half:
                one.grad = None
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return left_out, loss.item(), errors


@pytest.mark.parametrize("window", [2, 3, 7, 1000])
def test_steps_that_are_left_out_because_they_overflow_are_not_judged(window):
    left_out, loss, errors = train(window)
    assert left_out > 3
    assert loss < 0.7  # it learns
    # A scale that grows every second or third step costs a third or a quarter of the steps: that is named.
    assert {one.code for one in errors} <= ({"AMP206"} if window < 4 else set())


def test_no_line_to_change_names_an_operation_that_is_not_known():
    def overflows(model, x):
        return model(x).float().square().mean() * 1e6

    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 4).half()
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)
        for _ in range(6):
            optimizer.zero_grad()
            overflows(model, torch.randn(16, 8).half()).backward()
            optimizer.step()
    report = session.report("script.py")
    assert "AMP202" in {one.code for one in report.findings}
    assert not [line for one in report.findings for line in one.fix if "without  " in line]
