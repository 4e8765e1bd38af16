"""What comes back from a checkpoint in half precision: infinite buffers of models, mean squares that are zero."""

import copy

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.script.state.loaded import squares_lost_in_saving
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule


def errors_of(train, *given):
    """Return the errors that a training has by ampcheck, and what it returns."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        out = train(*given)
    assert not session.watcher.broken, session.watcher.not_seen
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR], out


def net():
    return nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def fit(model, optimizer, scaler, size):
    for _ in range(6):
        x = torch.randn(32, 8) * size
        with torch.autocast("cuda", torch.float16):
            loss = 1e-2 * (model(x) - x[:, :1] / size).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def shrunk(tree, dtype):
    """Return a state with its numbers in a precision, and in FP32 again."""
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype).float() if tree.is_floating_point() else tree.clone()
    return (
        {key: shrunk(one, dtype) for key, one in tree.items()}
        if isinstance(tree, dict)
        else copy.deepcopy(tree)
    )


def resumes(dtype, size, shrink):
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cuda")
    fit(model, optimizer, scaler, size)
    states = shrink(model.state_dict(), dtype), shrink(optimizer.state_dict(), dtype)
    again = net()
    again.load_state_dict(states[0])
    other = torch.optim.Adam(again.parameters(), 1e-3)
    other.load_state_dict(states[1])
    fit(again, other, scaler, size)
    return again, other


def only_buffers(state, dtype):
    return shrunk(state, dtype) if "0.running_var" in state else copy.deepcopy(state)


def tiny_buffers(state, dtype):
    """Cast what a model that measures in volts squared has: far below the smallest number of float16."""
    if "0.running_var" not in state:
        return copy.deepcopy(state)
    return shrunk({**state, "0.running_var": 1e-10 * state["0.running_var"]}, dtype)


def only_squares(state, dtype):
    return shrunk(state, dtype) if "param_groups" in state else copy.deepcopy(state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_buffers_that_a_checkpoint_made_infinite_are_an_error_where_they_are_loaded(dtype):
    errors, (model, _) = errors_of(resumes, dtype, 2e3, only_buffers)
    fine = bool(model[0].running_var.isfinite().all())
    assert fine is (dtype is torch.bfloat16)  # 4e6 is more than float16 holds
    assert [one.code for one in errors] == ([] if fine else ["AMP504"])
    for error in errors:
        assert error.origin.line == line_of(resumes, "again.load_state_dict")
        assert (
            "0.running_var was saved in half precision: 100 % of its numbers are infinite here"
            in error.message
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_buffers_that_a_checkpoint_made_zero_are_an_error_where_they_are_loaded(dtype):
    errors, _ = errors_of(resumes, dtype, 1.0, tiny_buffers)
    own = [one for one in errors if "0.running_var was saved" in one.message]
    assert bool(own) is (dtype is torch.float16)
    for error in own:
        assert error.origin.line == line_of(resumes, "again.load_state_dict")
        assert "100 % of its numbers are zero here" in error.message


def annealed(name, value):
    """Load a model's halves, among them a buffer that its training has brought to zero."""
    torch.manual_seed(0)
    model = net()
    model.register_buffer(name, torch.ones(()) if name == "share" else torch.zeros(8))
    state = shrunk(model.state_dict(), torch.float16)
    state[name].fill_(value)
    model.load_state_dict(state)
    fit(model, torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda"), 1.0)


@pytest.mark.parametrize("name", ["share", "offsets"])
def test_a_number_that_came_to_zero_and_buffers_that_begin_there_are_no_loss(name):
    assert errors_of(annealed, name, 0.0)[0] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mean_squares_that_a_checkpoint_made_zero_are_an_error_where_they_are_loaded(dtype):
    errors, _ = errors_of(resumes, dtype, 1.0, only_squares)
    assert [one.code for one in errors] == ([] if dtype is torch.bfloat16 else ["AMP504"])
    for error in errors:
        assert error.origin.line == line_of(resumes, "other.load_state_dict")
        assert "Adam.state.exp_avg_sq was saved in half precision" in error.message
        assert error.fix[0].count("exp_avg_sq") == 1  # though each weight has one


def test_masks_that_are_infinite_before_and_after_are_none():
    def masked():
        torch.manual_seed(0)
        model = net()
        model.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        fit(model, torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda"), 1.0)
        other = copy.deepcopy(model)
        other.load_state_dict(model.state_dict())

    assert errors_of(masked)[0] == []


def test_infinite_buffers_beside_weights_that_were_never_cast_are_not_called_saved_in_half_precision():
    def loads():
        torch.manual_seed(0)
        model = net()
        state = copy.deepcopy(model.state_dict())
        state["0.running_var"].fill_(torch.inf)
        model.load_state_dict(state)
        fit(model, torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda"), 1.0)

    assert not [one for one in errors_of(loads)[0] if "saved in half precision" in one.message]


def test_an_optimizer_with_several_eps_is_left_to_the_share_of_zeros():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([weight])
    optimizer.param_groups[0]["eps"] = (1e-30, 1e-3)
    for zeros in (1, 3):
        squares = torch.tensor([0.0] * zeros + [1.0] * (4 - zeros))
        state = {"step": torch.tensor(1.0), "exp_avg": torch.ones(4), "exp_avg_sq": squares}
        saved = {"state": {0: state}, "param_groups": optimizer.state_dict()["param_groups"]}
        assert len(list(squares_lost_in_saving(optimizer, saved, ("f.py", 1)))) == (zeros > 2)


@pytest.mark.parametrize("eps", [1e-8, 1.0])
@pytest.mark.parametrize(("zeros", "mean"), [(1, 1e-4), (1, 1e-9), (0, 1e-4)])
def test_a_few_mean_squares_that_are_zero_are_an_error_by_how_far_the_next_step_goes(zeros, mean, eps):
    """Adam's own step says how far: `zeros` of 16 weights of a layer, and no other, go too far."""
    weight = nn.Parameter(torch.zeros(16, 1))
    optimizer = torch.optim.Adam([weight], lr=1.0, eps=eps)
    squares = torch.full((16, 1), 1e-8)
    squares[:zeros] = 0.0
    state = {"step": torch.tensor(1e6), "exp_avg": torch.full((16, 1), mean), "exp_avg_sq": squares}
    saved = {"state": {0: state}, "param_groups": optimizer.state_dict()["param_groups"]}
    optimizer.load_state_dict(saved)
    lost = list(squares_lost_in_saving(optimizer, saved, ("f.py", 1)))
    weight.grad = torch.zeros(16, 1)
    optimizer.step()
    far = weight.detach().abs() > 10.0  # learning rates
    assert bool(lost) is bool(far.any())
    for loss in lost:
        assert (loss.moved, loss.stuck) == (16, int(far.sum()))
