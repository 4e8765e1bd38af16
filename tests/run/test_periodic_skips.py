"""Steps that are skipped for every few batches: the one that is looked into is to be one of these."""

import inspect

import pytest
import torch
from torch import nn

from ampcheck.observe.script.scaling.scales import Skips
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


class Magnitude(nn.Module):
    """The length of two projections; of zeros its gradient is NaN, as float16 has no 1e-8."""

    def __init__(self, *, wide):
        super().__init__()
        self.real, self.imag = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.wide = wide

    def forward(self, x):
        real, imag = self.real(x), self.imag(x)
        if self.wide:
            real, imag = real.float(), imag.float()
        return torch.sqrt(real * real + imag * imag + 1e-8)


def train(*, wide, every, steps=120):
    """Train; in `every` so many batches, the last half of the rows are zero. Return the losses of these batches."""
    torch.manual_seed(0)
    model = nn.Sequential(Magnitude(wide=wide), nn.Linear(16, 1))
    optimizer, scaler = (
        torch.optim.Adam(model.parameters(), 3e-3),
        torch.amp.GradScaler("cuda", init_scale=16.0),
    )
    scales = []
    for step in range(steps):
        x = torch.randn(16, 8)
        if step % every == every - 1:
            x[8:] = 0.0
        with torch.autocast("cuda", torch.float16):
            loss = (model(x).float()[:, 0] - x.square().sum(1)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@pytest.mark.parametrize("every", [3, 5, 7])
@pytest.mark.parametrize("wide", [True, False])
def test_a_step_that_is_skipped_every_few_batches_is_named_at_its_line(every, wide):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        scales = train(wide=wide, every=every)
    assert not session.watcher.broken, session.watcher.not_seen
    fell = [
        at for at, (before, after) in enumerate(zip([16.0, *scales], scales, strict=False)) if after < before
    ]
    assert fell == ([] if wide else [*range(every - 1, 120, every)])
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors[:1]] == ([] if wide else ["AMP206"])
    if not wide:
        code, first = inspect.getsourcelines(Magnitude)
        at = first + next(n for n, text in enumerate(code) if "torch.sqrt" in text)
        assert errors[0].origin.line == at


@pytest.mark.parametrize("every", [2, 3, 10])
def test_the_step_that_is_looked_into_is_as_far_away_as_the_last_skip_was(every):
    skips, wanted = Skips(), []
    for step in range(200):
        skipped = step % every == every - 1
        wanted.append(skips.wants_next("Adam", step, skips=skipped))
    looked = [step for step in wanted if step]
    assert 0 < len(looked) <= 12
    assert all(step % every == every - 1 for step in looked)


def test_steps_that_are_skipped_in_a_row_ask_for_the_next_one():
    skips = Skips()
    wanted = [skips.wants_next("Adam", step, skips=step > 10) for step in range(20)]
    assert [(at, step) for at, step in enumerate(wanted) if step] == [(12, 13)]
