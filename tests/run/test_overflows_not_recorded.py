"""What overflows where no step is recorded: in a buffer between two of them, or in losses that nothing follows."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

#: What is added in each step: the third one exceeds what float16 holds.
GROWS = 25_000


class Spread(nn.Module):
    """Divides by the running spread of what it is given, as a sum that only grows."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("total", torch.ones((), dtype=dtype))

    def forward(self, x):
        with torch.no_grad():
            total = self.total.float() + GROWS * x.square().mean()
            self.total.copy_(total)
        return x / (1 + self.total.float().log())


def normed(dtype, steps=40):
    """Train behind such a norm; return the report and what it has summed up."""
    torch.manual_seed(0)
    norm, head = Spread(dtype), nn.Linear(8, 1)
    optimizer, session = (
        torch.optim.SGD(head.parameters(), 1e-3),
        Session(Schedule(steps=frozenset({0})), as_cuda=True),
    )
    with session.watching():
        for _ in range(steps):
            x = torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (head(norm(x)).float() - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py"), float(norm.total)


def test_a_float16_buffer_that_overflows_in_a_step_that_was_not_recorded_is_an_error_where_it_is_written():
    report, total = normed(torch.float16)
    assert total == float("inf")
    assert report.loop.recorded == (0,)
    (error,) = (one for one in report.findings if one.severity is Severity.ERROR)
    assert (error.code, error.origin.line) == ("AMP506", line_of(Spread.forward, "self.total.copy_"))
    assert any(f":{line_of(Spread.__init__, 'register_buffer')}" in line for line in error.fix)


def test_the_same_in_fp32_is_safe():
    report, total = normed(torch.float32)
    assert 65504 < total < float("inf")
    assert report.verdict.word is Health.SAFE


def summed(logits, labels):
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


def left_out(*, wide, optimizes=True, trains=True):
    """Train on a sum that float16 does not hold, and leave a step out whose loss is not finite; return the report."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 64)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3) if optimizes else None
        for _ in range(6):
            x, labels = 40 * torch.randn(4096, 8), torch.randint(64, (4096,))
            if optimizer is not None:
                optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                logits = model(x)
            loss = summed(logits.float() if wide else logits, labels)
            if not torch.isfinite(loss) or not trains:
                continue
            loss.backward()
            optimizer.step()
    assert not session.watcher.broken, session.watcher.not_seen
    return session, session.report("script.py")


def test_losses_that_are_never_finite_are_an_error_though_no_backward_ever_runs():
    session, report = left_out(wide=False)
    assert session.trained
    assert session.watcher.steps == 0
    (error,) = (one for one in report.findings if one.severity is Severity.ERROR)
    assert (error.code, error.origin.line) == ("AMP101", line_of(summed, "reduction"))


def test_finite_losses_of_the_same_script_are_no_error():
    session, report = left_out(wide=True)
    assert session.watcher.steps == 6
    assert not [one for one in report.findings if one.severity is Severity.ERROR]


def test_a_script_with_an_optimizer_that_never_steps_is_no_inference_and_not_safe():
    session, report = left_out(wide=True, trains=False)
    assert session.trained
    assert report.verdict.word is Health.UNKNOWN


@pytest.mark.parametrize("wide", [True, False])
def test_a_script_without_an_optimizer_does_not_train(wide):
    assert not left_out(wide=wide, optimizes=False, trains=False)[0].trained
