"""Half-precision numbers that a model is given: where the step has computed them is recorded, too."""

from itertools import accumulate
from operator import mul

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.reference.given import GIVEN
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))


class Decay(nn.Module):
    """Shares of a signal that are left after so many steps, multiplied up in some precision."""

    def __init__(self, dtype):
        super().__init__()
        kept = 1 - torch.linspace(1e-4, 0.02, 500).to(dtype)
        self.register_buffer("left", torch.stack(list(accumulate(kept, mul))))

    def noised(self, x):
        return self.left[torch.randint(0, 500, (len(x),)), None] * x.to(self.left.dtype)


def audit(prepare):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        frozen = nn.Linear(8, 8).half().requires_grad_(False)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(8):
            x = prepare(ROWS, frozen)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(x).float(), ROWS[:, :2])
            loss.backward()
            optimizer.step()
    return session.report("script.py")


def test_a_table_that_was_computed_in_half_precision_is_named():
    wide, low = Decay(torch.float32).left, Decay(torch.bfloat16).left
    assert ((low - wide).abs() > 0.05 * wide).float().mean() > 0.5
    table = Decay(torch.bfloat16)
    report = audit(lambda x, _: table.noised(x))
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "table.left at test_entered.py:" in report.verdict.sentence
    assert GIVEN in report.verdict.sentence


def test_what_the_step_itself_spoils_before_the_model_is_an_error():
    def cancel(x, _):
        return (x.half() * 0.01 + 500).sub(500).mul(100)

    lost = (cancel(ROWS, None).float() - ROWS).norm() / ROWS.norm()
    assert lost > 0.9
    assert audit(cancel).verdict.word is Health.UNSAFE


STORED = ROWS.half()
FINE = [
    lambda x, _: x.half(),
    lambda x, _: STORED.clone(),
    lambda x, frozen: frozen(x.half()),
    lambda x, _: Decay(torch.float32).noised(x).bfloat16(),
]


@pytest.mark.parametrize("prepare", FINE)
def test_numbers_that_are_rounded_once_are_safe(prepare):
    report = audit(prepare)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


def test_a_half_weight_that_is_read_between_steps_is_no_number_of_unknown_origin():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).half()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(8):
            shown = model[0].weight.float().norm()
            optimizer.zero_grad()
            F.mse_loss(model(ROWS.half()).float(), ROWS[:, :2]).backward()
            optimizer.step()
    assert shown > 0
    assert not [gap for gap in session.report("script.py").verdict.coverage.gaps if GIVEN in gap]
