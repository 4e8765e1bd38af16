"""Scripts that make overflowed gradients finite, so that no step is skipped: said at the line that does so."""

import numpy as np
import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health


class Forgiving(torch.amp.GradScaler):
    """Takes infinities out of gradients before it looks for them."""

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        super().unscale_(optimizer)


class Careful(torch.amp.GradScaler):
    """Counts calls and changes nothing."""

    calls = 0

    def unscale_(self, optimizer):
        self.calls += 1
        super().unscale_(optimizer)


def train(kind, first, repairs=None, steps=12):
    """Train; return the report, how many gradients overflowed, and whether the weights moved in their first step."""
    torch.manual_seed(0)
    session, overflowed, moved = Session(Schedule(), as_cuda=True), 0, False
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), kind("cuda", first)
        for step in range(steps):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            overflowed += sum(not np.isfinite(one.grad.numpy()).all() for one in model.parameters())
            if repairs is not None:
                for parameter in model.parameters():
                    repairs(parameter)
            scaler.unscale_(optimizer)
            before = model[0].bias.detach().clone()
            scaler.step(optimizer)
            moved = moved or (step == 0 and not torch.equal(before, model[0].bias))
            scaler.update()
    report = session.report("script.py")
    return report, overflowed, [one for one in report.findings if one.severity is Severity.ERROR]


def test_a_scaler_that_takes_infinities_out_of_gradients_is_said_at_its_code():
    report, overflowed, errors = train(Forgiving, 2.0**24)
    assert overflowed
    assert not any(event.skipped for event in report.loop.scales)
    first = errors[0]
    assert first.code == "AMP418"
    assert first.message.startswith("Forgiving makes overflowed gradients finite")
    assert first.origin.line == line_of(Forgiving.unscale_, "nan_to_num_")
    assert report.verdict.word is Health.UNSAFE


def by_nan_to_num(parameter):
    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def by_a_mask(parameter):
    parameter.grad = torch.where(parameter.grad.isfinite(), parameter.grad, 0.0)


@pytest.mark.parametrize("repairs", [by_nan_to_num, by_a_mask])
def test_a_line_that_takes_infinities_out_of_gradients_is_said_with_the_overflow(repairs):
    report, overflowed, errors = train(torch.amp.GradScaler, 2.0**24, repairs)
    assert overflowed
    assert not any(event.skipped for event in report.loop.scales)
    first = errors[0]
    assert first.code == "AMP202"
    assert "makes it finite" in first.message
    assert first.origin.line == repairs.__code__.co_firstlineno + 1
    assert [one.code for one in errors].count("AMP501") == 0


@pytest.mark.parametrize(
    ("kind", "first", "repairs"),
    [
        (Careful, 2.0**20, None),
        (Forgiving, 2.0**10, None),
        (torch.amp.GradScaler, 2.0**10, by_nan_to_num),
    ],
)
def test_where_nothing_is_hidden_nothing_is_said(kind, first, repairs):
    report, overflowed, errors = train(kind, first, repairs)
    assert errors == []
    assert bool(overflowed) is (first > 2.0**16)
    assert report.verdict.word is Health.SAFE


class Clearing(torch.amp.GradScaler):
    """Lets torch find the overflow, and clears the gradients then: the step is skipped as ever."""

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        if any(float(value) for value in found):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.zero_()


def test_a_scaler_that_skips_what_it_clears_hides_nothing():
    report, overflowed, errors = train(Clearing, 2.0**20)
    assert overflowed
    assert any(event.skipped for event in report.loop.scales)
    assert errors == []


def test_a_mask_of_something_else_hides_nothing():
    def counts_hits(parameter):
        torch.where(torch.ones(4) > 0, torch.arange(4.0), torch.zeros(4))

    _, overflowed, errors = train(torch.amp.GradScaler, 2.0**20, counts_hits)
    assert overflowed
    assert not any("makes it finite" in one.message for one in errors)


# -- infinities that a ReLU's backward leaves out


class Cut(nn.Module):
    """Gives what a ReLU cuts off a gradient that overflows, and others one that underflows."""

    def __init__(self, *, cut):
        super().__init__()
        self.hidden, self.other, self.cut = nn.Linear(8, 8), nn.Linear(8, 8), cut

    def forward(self, x):
        h = self.hidden(x)
        y = 1e-3 * (torch.relu(h) if self.cut else h)
        far = y * torch.where(h < 0, 6e4, 1.0).half()  # not finite where it is negative
        total = (far * 64).float().sum(1, keepdim=True)
        return total, 3e-4 * self.other(x).float()


@pytest.mark.parametrize("cut", [True, False])
def test_what_a_relu_leaves_out_in_the_backward_does_no_harm(cut):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Cut(cut=cut)
        optimizer = torch.optim.SGD(model.parameters(), 1e-9)
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = sum(one.square().mean() for one in model(torch.randn(16, 8)))
            optimizer.zero_grad()
            loss.backward()
            if not cut:
                for parameter in model.parameters():
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            optimizer.step()
    report = session.report("script.py")
    backward = [site for site in report.low.sites if site.phase is Phase.BACKWARD]
    assert any(report.low.sites[site].infs for site in backward)  # else this shows nothing
    codes = [one.code for one in report.findings if one.severity is Severity.ERROR]
    assert ("AMP202" in codes) is not cut, codes


# -- a loss scale of the script's own, far too large, and infinities that are made zero behind it


def by_hand(log2_scale, steps=6, unit=100.0):
    """Train with a loss scale by hand; return the errors of the report, and whether the first gradient is FP32's."""
    torch.manual_seed(0)
    scale, session = 2.0**log2_scale, Session(Schedule(), as_cuda=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    batches, norms = torch.randn(steps, 16, 8), []
    loss = (model(batches[0]) * unit - 1e3 * batches[0, :, :4]).square().mean()
    wide = nn.utils.get_total_norm(torch.autograd.grad(loss, list(model.parameters())))
    with session.watching():
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for x in batches:
            with torch.autocast("cuda", torch.float16):
                out = model(x).float() * unit
            loss = (out - 1e3 * x[:, :4]).square().mean()
            optimizer.zero_grad()
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            norms.append(nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]))
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return errors, bool((norms[0] - wide).abs() < 0.1 * wide)


def test_a_scale_of_the_scripts_own_that_is_too_large_is_said_where_its_infinities_end():
    errors, right = by_hand(18)
    assert not right
    assert (errors[0].code, errors[0].origin.line) == ("AMP202", line_of(by_hand, "nan_to_num_"))
    assert "makes it finite" in errors[0].message
    (smaller,) = [line for line in errors[0].fix if "multiply the loss by 2.0**" in line]
    fits = int(smaller.partition("2.0**")[2].split()[0])
    none, right = by_hand(fits)
    assert (none, right) == ([], True)


def test_a_scale_below_one_is_found_where_only_that_fits():
    errors, right = by_hand(4, unit=1e5)
    assert not right
    (smaller,) = [line for line in errors[0].fix if "multiply the loss by 2.0**-" in line]
    none, right = by_hand(-int(smaller.partition("2.0**-")[2].split()[0]), unit=1e5)
    assert (none, right) == ([], True)


def rooted(x):
    """Return a root of a cube: 0 in float16 where a channel is dead, which a clamp in front of it is to prevent."""
    x = x.clamp(min=3e-4)
    return (x * x * x).mean(1, keepdim=True).pow(1.0 / 3)


def test_the_backward_of_torchs_own_clamp_hides_nothing():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model, head = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()), nn.Linear(8, 1)
        hook = lambda grad: torch.nan_to_num(grad, 0.0, 0.0, 0.0)  # noqa: E731
        for one in model.parameters():
            one.register_hook(hook)
        with torch.no_grad():
            model[0].bias -= 8.0
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 1e-3)
        for _ in range(4):
            with torch.autocast("cuda", torch.float16):
                loss = head(rooted(model(torch.randn(64, 5, 8)).half())).float().square().mean()
            optimizer.zero_grad()
            (loss * 2.0**10).backward()
            for one in (*model.parameters(), *head.parameters()):
                one.grad.div_(2.0**10)
            optimizer.step()
    test = test_the_backward_of_torchs_own_clamp_hides_nothing
    besides = [one.beside for one in session.watcher.tape.recorded if one.beside is not None]
    assert {beside.hidden[1] for beside in besides} == {line_of(test, "torch.nan_to_num")}
