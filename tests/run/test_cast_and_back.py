"""A model that is cast to half precision itself for a look, and back before it is trained on."""

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule


def cast_around(rounds, rate):
    """Cast the model itself for a look, and back before it is trained on."""

    def loop():
        torch.manual_seed(0)
        model, rows = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(64, 8)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(6):
            if rounds:
                model.to(torch.bfloat16)
                model(rows.bfloat16())
                model.float()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(rows).float(), rows[:, :1].sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return loop


@pytest.mark.parametrize(
    ("rounds", "rate", "lost"), [(True, 1e-5, True), (False, 1e-5, False), (True, 0.1, False)]
)
def test_a_model_that_is_cast_and_back_before_each_step_loses_them_at_the_line_that_casts_it(
    rounds, rate, lost
):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        cast_around(rounds, rate)()
    found = [one for one in session.report("script.py").findings if one.code == "AMP504"]
    assert bool(found) is lost
    for one in found:
        assert one.origin.line == line_of(cast_around, "model.to(torch.bfloat16)")
        assert "its module is cast to half precision and back" in one.message
