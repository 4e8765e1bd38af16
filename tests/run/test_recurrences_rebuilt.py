"""A backward that computes the states of a long recurrence again: what it loses shows in late calls only."""

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.reference.lineage import Lineage, error_jumps
from ampcheck.observe.statistics.step_record import SAMPLED_CALLS, StepRecord
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import PairError, Phase, Site


class Scan(torch.autograd.Function):
    """Leaky sums over time, newest first in the backward: it has the last one only, and takes away what was added."""

    @staticmethod
    def forward(ctx, given, kept):
        sums = [given[0]]
        for new, part in zip(given[1:], kept[1:], strict=True):
            sums.append(part * sums[-1] + new)
        ctx.save_for_backward(given, kept, sums[-1])
        return torch.stack(sums)

    @staticmethod
    def backward(ctx, grads):
        given, kept, total = ctx.saved_tensors
        to_given, to_kept, flow = torch.zeros_like(given), torch.zeros_like(kept), grads[-1]
        for at in range(len(given) - 1, 0, -1):
            total = (total - given[at]) / kept[at]
            to_given[at] = flow
            to_kept[at] = flow * total
            flow = flow * kept[at] + grads[at - 1]
        to_given[0] = flow
        return to_given, to_kept


class Memory(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.read, self.gate, self.head = nn.Linear(4, 16), nn.Linear(4, 16), nn.Linear(16, 1)
        self.dtype = dtype

    def forward(self, u):
        given, kept = self.read(u), 0.6 + 0.3 * torch.sigmoid(self.gate(u))
        return self.head(Scan.apply(given.to(self.dtype), kept.to(self.dtype)))


def trained(dtype, steps=6):
    """Train with the recurrence in a dtype; return the errors of the report, and the gate's last gradient."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Memory(dtype)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(steps):
            u = torch.randn(48, 8, 4)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (model(u).float()[..., 0] - u.sum(-1).cumsum(0) / 8).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return errors, model.gate.weight.grad


def test_what_a_backward_rebuilds_step_by_step_is_said_where_it_does_so():
    errors, low = trained(torch.bfloat16)
    none, wide = trained(torch.float32)
    assert (low - wide).norm() > wide.norm()
    assert (errors[0].code, errors[0].origin.line) == (
        "AMP501",
        line_of(Scan.backward, "total = (total - given"),
    )
    assert none == []


def test_of_many_calls_the_first_and_each_as_far_again_are_sampled():
    record = StepRecord(samples=1)
    number = record.number(("mul", "output", "", Phase.FORWARD, "float32", "", 0))
    for call in range(1, 201):
        record.add(number, torch.full((3,), float(call)))
    (calls,) = record.fetch().samples.values()
    later = [20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192]
    assert [float(one) for one in calls] == [*range(1, SAMPLED_CALLS + 1), *later]


def test_what_is_written_into_a_view_is_in_its_base():
    lineage, base, part = Lineage(), torch.zeros(4, 2), torch.ones(2)
    lineage.made(part, 7)
    lineage.read((base[1], part))
    lineage.passed(base[1].copy_(part))
    lineage.read((base,))
    lineage.made(base @ torch.ones(2), 8)
    assert 7 in lineage.sources[8]


def test_a_gradient_that_is_off_is_not_what_the_forward_has_saved():
    """The backward begins with what torch makes beside the loss, in the forward's own phase."""
    loss, root, cast, grad = (
        Site("", op, "output", phase, dtype, "net.py", 3)
        for op, phase, dtype in (
            ("mse_loss", Phase.FORWARD, "float32"),
            ("ones_like", Phase.FORWARD, "float32"),
            ("_to_copy", Phase.FORWARD, "bfloat16"),
            ("mm", Phase.BACKWARD, "bfloat16"),
        )
    )
    off = PairError(64, 64, 0, 64.0, 0.0, 64.0, 32.0, 0)
    sources = {loss: [], root: [loss], cast: [], grad: [root, cast]}
    assert error_jumps(sources, {grad: off}, "bfloat16") == ()
    (jump,) = error_jumps(sources | {grad: [cast]}, {grad: off}, "bfloat16")
    assert (jump.site, jump.dropped) == (grad, cast)


def test_what_a_limit_of_half_precision_cuts_off_is_said_at_the_limit():
    """FP32 runs without it, so that all that was above it is missing there."""
    made, limit, small = (
        Site("net", op, "output", Phase.FORWARD, dtype, "net.py", line)
        for op, dtype, line in (
            ("convolution", "float16", 1),
            ("clamp", "float32", 2),
            ("clamp", "float32", 3),
        )
    )
    cut = PairError(64, 64, 0, 63.0, 0.0, 64.0, 32.0, 0)
    rounded = PairError(64, 64, 0, 4.0, 0.0, 64.0, 62.0, 0)
    jumps = error_jumps({made: [], limit: [made], small: [made]}, {limit: cut, small: rounded}, "float16")
    assert [(one.site.line, one.dropped.line) for one in jumps] == [(2, 2), (3, 1)]


def test_a_sum_that_loses_what_is_added_is_said_and_not_the_cast_of_what_that_is():
    """Of many calls the last ones are far off, and what is added is right."""
    part, total, single = (
        Site("", op, "output", Phase.FORWARD, "bfloat16", "net.py", line)
        for op, line in (("_to_copy", 1), ("add_", 2), ("add", 3))
    )
    off = PairError(64, 64, 0, 32.0, 0.0, 64.0, 32.0, 0)
    jumps = error_jumps(
        {part: [], total: [part, total], single: [part]}, {total: off, single: off}, "bfloat16"
    )
    assert [(one.site.line, one.dropped.line) for one in jumps] == [(2, 2), (3, 1)]


@pytest.mark.parametrize(("other", "lines"), [(0.0, [2]), (0.1, [1])])
def test_an_error_that_grows_over_a_difference_and_its_division_begins_in_their_line(other, lines):
    """Each grows it by less than a jump; a division by a number that is off itself adds nothing of its own."""
    kept, spacing, difference, slope = (
        Site("", op, "output", Phase.FORWARD, dtype, "net.py", line)
        for op, dtype, line in (
            ("mm", "float16", 1),
            ("mul", "float32", 1),
            ("sub", "float32", 2),
            ("div", "float32", 2),
        )
    )
    sources = {kept: [], spacing: [], difference: [kept], slope: [difference, spacing]}
    errors = {
        site: PairError(64, 64, 0, 64.0 * level**2, 0.0, 64.0, 32.0, 0)
        for site, level in ((kept, 0.01), (spacing, other), (difference, 0.04), (slope, 0.16))
    }
    assert [one.site.line for one in error_jumps(sources, errors, "float16")] == lines
