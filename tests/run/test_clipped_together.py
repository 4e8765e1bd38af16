"""One clip for two optimizers, of which one overflows: what it makes of the other's gradients is stepped."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def train(*, together, blows=True, steps=60):
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 1)
    slow, fast = torch.optim.SGD(first.parameters(), 1e-3), torch.optim.Adam(second.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for step in range(steps):
        x = torch.randn(32, 8)
        slow.zero_grad()
        fast.zero_grad()
        with torch.autocast("cuda", torch.float16):
            hidden = first(x)
            loss = (second(hidden.tanh()).float() - x.sum(1, keepdim=True)).square().mean()
        if blows and step == 20:
            hidden.register_hook(lambda grad: grad * torch.randn_like(grad).sign() * 1e30)
        scaler.scale(loss).backward()
        scaler.unscale_(slow)
        scaler.unscale_(fast)
        if together:
            nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 1.0)
        else:
            nn.utils.clip_grad_norm_(first.parameters(), 1.0)
            nn.utils.clip_grad_norm_(second.parameters(), 1.0)
        scaler.step(slow)
        scaler.step(fast)
        scaler.update()
    return second.weight


@pytest.mark.parametrize(("together", "blows"), [(True, True), (False, True), (True, False)])
def test_a_clip_of_two_optimizers_is_named_where_it_makes_one_step_nan(together, blows):
    weights, session = [], Session(Schedule(), as_cuda=True)
    with session.watching():
        weights.append(train(together=together, blows=blows))
    assert not session.watcher.broken, session.watcher.not_seen
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    fine = bool(weights[0].isfinite().all())
    assert fine is not (together and blows)
    named = [one for one in errors if one.code == "AMP403"]
    assert bool(named) is not fine
    for error in named:
        assert errors[0] is error
        assert error.origin.line == line_of(train, "[*first.parameters(), *second")
        assert error.fix[0] == "for one in (slow, fast):  # each by itself"
        assert error.fix[2].endswith("(weights, 1.0)")
