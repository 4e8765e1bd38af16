"""Lines that are printed for what one line makes and others read, and for sums of gradients that autograd makes."""

import linecache

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.diagnose.rules.makers import before_cast, read_again
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

BLOCK = """for start in range(n):
    grad = (grad * weight).to(dtype)
    left[start] = grad @ w
    right += (grad.t() @ h).float()  # of grad
    grad = other
    use(grad)
print(grad)
"""


def test_the_lines_that_read_what_is_cast_are_those_of_its_block_until_it_is_made_again(tmp_path):
    file = tmp_path / "block.py"
    file.write_text(BLOCK)
    linecache.checkcache(str(file))
    assert read_again(str(file), 2, 3) == [4]
    assert read_again(str(file), 3, 4) == []  # an item is written: no variable is made
    assert before_cast(str(file), 3, "block.py:2") == ", before the cast at block.py:2; the same at line 4"
    assert before_cast(str(file), 3, "") == ""


class Points(nn.Module):
    """A level that each of many parts reads, as it was cast once."""

    def __init__(self, dtype):
        super().__init__()
        self.level, self.body, self.dtype = nn.Parameter(torch.full((8,), 1.0)), nn.Linear(4, 8), dtype

    def forward(self, parts):
        level = self.level.to(self.dtype)
        total = 0.0
        for part in parts:
            total = total + ((level + self.body(part).float()).exp().mean(0) * 0.01).sum()
        return total - 10.0 * level.float().sum()


def fits(dtype):
    torch.manual_seed(0)
    model = Points(dtype).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        parts = 0.3 * torch.randn(400, 16, 4, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.level.grad.clone(), parts, model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_of_gradients_in_half_precision_is_placed_at_the_cast_of_what_is_read_many_times(dtype):
    session, made = Session(Schedule(), as_cuda=True), []
    with session.watching():
        made.append(fits(dtype))
    errors = [one for one in session.report("loop").findings if one.severity is Severity.ERROR]
    ((given, parts, model),) = made
    wide = Points(torch.float32)
    wide.load_state_dict(model.state_dict())
    wide(parts).backward()
    off = float((given - wide.level.grad).norm() / wide.level.grad.norm())
    lost = dtype is torch.bfloat16
    assert (off > 0.15) is lost, off
    assert [one.code for one in errors] == ["AMP501"] * lost, [(one.code, one.message) for one in errors]
    for error in errors:
        assert error.origin.line == line_of(Points.forward, "level = self.level.to(")
        assert error.fix == (
            "# here, without the cast to bf16, in which the gradients of all its uses are added up",
        )


class Levels(nn.Module):
    """The logarithm of a power that is zero in float16."""

    def __init__(self, wide):
        super().__init__()
        self.stem, self.head, self.wide = nn.Linear(8, 8, bias=False), nn.Linear(8, 1), wide
        self.stem.weight.data.mul_(1e-4)

    def forward(self, x):
        wave = self.stem(x)
        wave = wave.float() if self.wide else wave
        power = wave * wave
        return self.head(torch.log10(power.float() + 1e-8))


def levels(wide):
    torch.manual_seed(0)
    model = Levels(wide).to("cuda")
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-12), torch.amp.GradScaler("cuda", 1.0)
    for _ in range(6):
        with torch.autocast("cuda", torch.float16):
            loss = (model(torch.randn(32, 8, device="cuda")) + 5.0).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.stem(torch.randn(32, 8)).detach()


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_zero_in_half_precision_is_placed_where_it_becomes_so_and_not_where_fp32_reads_it(wide):
    session, made = Session(Schedule(), as_cuda=True), []
    with session.watching():
        made.append(levels(wide))
    errors = [one for one in session.report("loop").findings if one.severity is Severity.ERROR]
    half = made[0].half()
    assert ((half * half) == 0).float().mean() > 0.5  # by a real cast
    assert [(one.code, one.origin.line) for one in errors[:1]] == (
        [] if wide else [("AMP103", line_of(Levels.forward, "power = wave * wave"))]
    )
