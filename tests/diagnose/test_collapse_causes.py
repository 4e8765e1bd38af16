"""Why a loss scale falls without end: the sentence names what brought the first number that is not finite."""

import inspect

import pytest
import torch
from torch import nn

import ampcheck


class Keeps(nn.Module):
    """A layer with a state in half precision, which grows until it is infinite."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.state = torch.full((4,), 1000.0, dtype=torch.float16)

    def forward(self, x):
        self.state = self.state * 1.5
        return self.linear(x) + 1e-6 * self.state


def collapse(model, batch, loss=lambda out: out.float().square().mean(), steps=24, init=2.0**4):
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=init)
    with ampcheck.watch(model, optimizer, scaler) as watching:
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                value = loss(model(batch(step)))
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
    return next(one for one in watching.report().findings if one.code == "AMP206")


def test_an_input_that_is_not_finite_is_named_and_no_layer_in_fp32_is_advised():
    given = (70000 * torch.ones(2, 4)).half().float()
    found = collapse(nn.Sequential(nn.Linear(4, 4)), lambda _: given.clone())
    assert "the input of model is not finite already" in found.message
    assert not found.fix


def test_an_input_that_the_step_casts_itself_is_named_at_its_cast():
    found = collapse(nn.Sequential(nn.Linear(4, 4)), lambda _: (70000 * torch.ones(2, 4)).half().float())
    assert "begins in _to_copy" in found.message
    assert "without the cast to half precision" in " ".join(found.fix)


class Chance(nn.Module):
    """A probability that float16 rounds to zero, where the slope of its logarithm has no bound."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        total = self.linear(x) - 40
        return torch.sigmoid(total)


def test_a_gradient_that_overflows_where_a_result_is_cast_up_is_placed_where_that_is_made():
    loss = nn.BCELoss()
    found = collapse(Chance(), lambda _: torch.ones(2, 4), lambda out: loss(out.float(), torch.ones(2, 4)))
    code, first = inspect.getsourcelines(Chance)
    assert found.origin.line == first + next(n for n, text in enumerate(code) if "torch.sigmoid" in text)


def test_a_state_that_is_infinite_since_an_earlier_step_is_found_at_its_line():
    found = collapse(Keeps(), lambda _: torch.ones(2, 4))
    assert "which begins in mul" in found.message  # FP32 has gone on from its own state, which is finite
    assert found.sites[0].file.endswith("test_collapse_causes.py")
    with open(__file__, encoding="utf-8") as file:
        assert "self.state * 1.5" in file.readlines()[found.sites[0].line - 1]


def test_skips_that_settle_the_scale_are_not_what_a_later_collapse_comes_from():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    found = collapse(model, lambda step: torch.full((2, 4), float("inf") if step > 11 else 8.0), init=2.0**16)
    assert "the input of model is not finite already" in found.message


def test_the_layer_that_overflows_is_the_one_to_keep_in_fp32_not_the_one_whose_gradient_comes_first():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(3e4)
        model[1].weight.fill_(1e-4)
    found = collapse(model, lambda _: torch.ones(2, 4))
    assert "model.0 in FP32" in found.fix[1]


@pytest.mark.parametrize("scale", [2.0**10, 1.0])
def test_a_scale_of_the_scripts_own_is_one_also_after_it_has_fallen_to_1(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with ampcheck.watch(model, optimizer, every=0) as watching:
        for by in (scale, 1.0, 1.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.ones(2, 4)).float().square().mean()
            (loss * by).backward()
            for parameter in model.parameters():
                parameter.grad.div_(by)
            optimizer.step()
    codes = {one.code for one in watching.report().findings}
    assert ("AMP408" in codes) is (scale == 1.0)
