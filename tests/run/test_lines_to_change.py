"""What a script's report says to change at a line, made in the script: nothing is wrong then."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.diagnose.rules.backward_unscaled import SCALED
from ampcheck.diagnose.rules.lines_to_change import _in_fp32
from ampcheck.diagnose.rules.makers import made_in_fp32
from ampcheck.renderers.next_step import next_step
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.maker import Maker
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase, Site


def watched(loss_of, *, init=2.0**10, steps=6, repairs=None, around=nullcontext):
    """Train with a loss; return the report and its errors."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", init)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16), around():
                loss = loss_of(model, torch.randn(16, 8))
            scaler.scale(loss).backward()
            if repairs is not None:
                repairs(model)
            scaler.step(optimizer)
            scaler.update()
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


def squares(model, x):
    out = model(x) * 3000.0
    return (out * out).mean().sqrt()


def squares_as_advised(model, x):
    out = model(x) * 3000.0
    with torch.autocast("cuda", enabled=False):
        return (out.float() * out.float()).mean().sqrt()


def differs(model, x):
    far = (model(x).float() + 4000.0).half()
    return (far.float() - 4000.0).square().mean()


def differs_as_advised(model, x):
    far = model(x).float() + 4000.0
    return (far - 4000.0).square().mean()


def overflows(model, x):
    large = (model(x).float() * 1e6).to(torch.float16)
    return (large @ torch.eye(4)).clamp(-1e4, 1e4).square().mean() * 1e-8


def overflows_as_advised(model, x):
    large = model(x).float() * 1e6
    with torch.autocast("cuda", enabled=False):
        return (large.float() @ torch.eye(4)).clamp(-1e4, 1e4).square().mean() * 1e-8


REGION = 'with torch.autocast("cuda", enabled=False):'


@pytest.mark.parametrize(
    ("wrong", "advised", "text", "code", "says"),
    [
        (squares, squares_as_advised, "out * out", "AMP101", (REGION,)),
        (differs, differs_as_advised, ".half()", "AMP501", ("# .float() here in place of the cast to fp16",)),
        (
            overflows,
            overflows_as_advised,
            ".to(torch.float16)",
            "AMP101",
            ("# .float() here in place of the cast to fp16", REGION),
        ),
    ],
)
def test_a_line_that_loses_is_said_with_the_lines_that_do_not(wrong, advised, text, code, says):
    _, errors = watched(wrong)
    first = errors[0]
    assert (first.code, first.origin.line) == (code, line_of(wrong, text))
    written = "\n".join(first.fix)
    assert all(words in written for words in says)
    if REGION in says:
        compile("\n".join(line.split("#")[0].rstrip() or "pass" for line in first.fix), "fix", "exec")
    _, errors = watched(advised)
    assert errors == []


def rates(model, x):
    return (torch.exp(model(x).float().clamp(-2, 2) - 22.0) * 1e9).square().mean()


def pack(tensor):
    return tensor.dtype, tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def pack_wide(tensor):
    return tensor.dtype, tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def unpack(kept):
    dtype, tensor = kept
    return tensor.to(dtype)


def kept_by(packs):
    return lambda: torch.autograd.graph.saved_tensors_hooks(packs, unpack)


SAVED = "# save for the backward here in torch.bfloat16, which has the range of FP32, or torch.float32"


def test_tensors_that_are_zero_where_they_are_saved_for_the_backward_are_said_with_the_line_that_saves():
    _, errors = watched(rates, around=kept_by(pack))
    assert (errors[0].code, errors[0].origin.line) == ("AMP201", line_of(pack, "return"))
    assert errors[0].fix == (SAVED,)
    _, errors = watched(rates, around=kept_by(pack_wide))
    assert errors == []


def pressures(model, x):
    """Square numbers that FP32 holds and float16 does not."""
    return ((model(x).float() * 1e6).square() * 1e-12).mean()


def test_tensors_that_are_infinite_where_they_are_saved_are_said_with_the_shorter_precision_first():
    _, errors = watched(pressures, around=kept_by(pack))
    assert (errors[0].code, errors[0].origin.line) == ("AMP101", line_of(pack, "return"))
    assert errors[0].fix == (SAVED,)
    _, errors = watched(pressures, around=kept_by(pack_wide))
    assert errors == []


def hours(model, x):
    """Read one of two numbers that are cast together by an angle."""
    kept = [number.half() for number in (x[:, :4] * 8192.0 + 20000.0, x[:, 4:])]
    return (model(x).float() * torch.sin(kept[0].float()) + kept[1]).square().mean()


def hours_as_advised(model, x):
    kept = [x[:, :4] * 8192.0 + 20000.0, x[:, 4:].half()]
    return (model(x).float() * torch.sin(kept[0].float()) + kept[1]).square().mean()


def test_of_several_tensors_that_are_cast_together_the_one_that_loses_is_said_by_the_line_that_reads_it():
    _, errors = watched(hours)
    assert errors[0].origin.line == line_of(hours, "number.half()")
    reads = f"test_lines_to_change.py:{line_of(hours, 'torch.sin')}"
    assert (
        errors[0]
        .fix[0]
        .startswith("# .float() here in place of the cast to fp16: for all, or at least for what ")
    )
    assert reads in errors[0].fix[0]
    _, errors = watched(hours_as_advised)
    assert errors == []


def spectra(model, x):
    """Compare logarithms of small numbers, which the backward divides by."""
    return (model(x).float().sigmoid() * 1e-9 + 1e-8).log().square().mean()


def test_what_is_zero_where_it_is_saved_and_divided_by_is_said_with_the_line_that_saves():
    _, errors = watched(spectra, around=kept_by(pack))
    assert (errors[0].code, errors[0].origin.line) == ("AMP202", line_of(pack, "return"))
    assert errors[0].fix == (SAVED,)
    _, errors = watched(spectra, around=kept_by(pack_wide))
    assert errors == []


def forgive(model):
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def plain(model, x):
    return model(x).float().square().mean() * 1e3


def test_a_scale_that_is_too_large_is_said_with_one_that_fits():
    report, errors = watched(plain, init=2.0**24, repairs=forgive)
    assert errors[0].code == "AMP202"
    smaller, hides = errors[0].fix
    skips = "a step whose gradients overflow must be skipped, and the scale halved"
    assert hides == f"# and without nan_to_num_ here: {skips}"
    advised = float(eval(smaller.partition("init_scale=")[2].removesuffix(" at most")))
    assert advised < 2.0**report.log2_scale
    _, errors = watched(plain, init=advised)
    assert errors == []
    _, errors = watched(plain, init=advised * 2.0**6, repairs=forgive)
    assert errors


def small(model, x):
    return model(x).float().square().mean() * 1e-7


def test_a_scale_that_is_too_small_is_said_with_one_that_keeps_most():
    _, errors = watched(small, init=1.0)
    assert errors[0].code == "AMP201"
    (larger,) = errors[0].fix
    _, errors = watched(small, init=float(eval(larger.partition("init_scale=")[2])))
    assert errors == []


class Wave(nn.Module):
    """A sine that has a weight."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.sin(x) * self.gain


wave = Wave()


class WalkedAgain(torch.autograd.Function):
    """Turns numbers far from zero into waves; the backward computes that again from what was saved."""

    @staticmethod
    def forward(ctx, x, dtype):
        ctx.save_for_backward(x.to(dtype))
        return wave(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].float().requires_grad_()
        with torch.enable_grad():
            out = wave(x)
        return torch.autograd.grad(out, x, grad)[0], None


def waves(dtype):
    return lambda model, x: WalkedAgain.apply(model(x).float() * 300.0 + 2000.0, dtype).square().mean()


def test_numbers_that_were_rounded_for_a_backward_that_computes_again_are_said_with_the_line_that_saves():
    x = 2000.0 + torch.rand(100) * 40.0
    apart = (x.to(torch.bfloat16).float().cos() - x.cos()).norm() / x.cos().norm()
    assert apart > 0.5
    _, errors = watched(waves(torch.bfloat16))
    assert errors[0].code == "AMP501"
    assert "what the backward computes with" in errors[0].message
    assert errors[0].origin.line == line_of(WalkedAgain.forward, "save_for_backward")
    assert errors[0].fix == ("# .float() here in place of the cast to bf16",)
    _, errors = watched(waves(torch.float32))
    assert errors == []


class Normed(nn.Module):
    """Scales by the variance of what it has seen, the difference of two sums."""

    def __init__(self, dtype):
        super().__init__()
        self.count, self.total, self.squares = 0, torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype)

    def forward(self, x):
        seen = x.detach().float()
        self.count += len(x)
        self.total.add_(seen.sum(0))
        self.squares.add_(seen.square().sum(0))
        mean = self.total.float() / self.count
        variance = self.squares.float() / self.count - mean.square()
        return (x - mean) * variance.clamp(min=1e-3).rsqrt()


def normed(dtype):
    held = []

    def loss(model, x):
        held[:] = held or [Normed(dtype)]
        return held[0](model(x).float() + 20.0).square().mean()

    return loss


def test_what_is_written_in_place_is_to_be_made_in_fp32():
    _, errors = watched(normed(torch.bfloat16))
    first = errors[0]
    assert (first.code, first.origin.line) == ("AMP501", line_of(Normed.forward, "self.squares.add_"))
    made = line_of(
        Normed.__init__, "self.squares ="
    )  # the variance is a difference: what is off in one is in both
    assert first.fix == tuple(
        f"# {first.origin.file}:{made}, where {name} is made: dtype=torch.float32"
        for name in ("squares", "total")
    )
    _, errors = watched(normed(torch.float32))
    assert errors == []


def test_what_a_cast_makes_and_a_line_writes_into_is_to_be_made_without_the_cast(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("powers = torch.zeros(4).half()\npowers.add_(x)\n")
    report, _ = watched(normed(torch.float32))
    report = replace(report, makers=(Maker("powers", str(script), 1, (f"{script}:2",)),))
    wanted = f"# {script}:1: powers without the cast to half precision"
    assert made_in_fp32(report, f"{script}:2") == wanted


class Pairs(nn.Module):
    """A head whose loss is a mean over all pairs: the gradient of each is tiny."""

    def __init__(self):
        super().__init__()
        self.trunk, self.seg, self.pair = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 8)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return self.seg(h), self.pair(h)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_that_its_cast_to_fp16_makes_zero_asks_for_a_loss_scale(scaled):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Pairs()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        scaler = torch.amp.GradScaler("cuda", enabled=scaled)
        for _ in range(4):
            x = torch.randn(1024, 8)
            with torch.autocast("cuda", torch.float16):
                seg, pair = model(x)
                near = pair @ pair.t()
                loss = nn.functional.cross_entropy(seg, x[:, :4].argmax(1))
                loss = loss + 0.01 * nn.functional.mse_loss(near, torch.eye(1024))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert bool(errors) is not scaled
    assert all(one.fix == SCALED for one in errors)
    assert ("scale the loss" in next_step(report)) is not scaled


class Lean(torch.autograd.Function):
    """A sine that keeps its argument for the backward in few bits."""

    kept = torch.bfloat16

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.to(Lean.kept))
        return torch.sin(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.cos(x.to(grad.dtype))


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32])
def test_what_a_backward_computes_from_a_rounded_copy_is_placed_where_that_is_saved(kept, monkeypatch):
    monkeypatch.setattr(Lean, "kept", kept)
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        phase = nn.Linear(4, 8)
        optimizer = torch.optim.SGD(phase.parameters(), 0.01)
        for _ in range(4):
            x = torch.randn(64, 4)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (Lean.apply(phase(x).float() + 20000.0) - x[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ([] if kept == torch.float32 else ["AMP501"])
    assert all(one.origin.line == line_of(Lean.forward, "save_for_backward") for one in errors)


def test_a_memory_that_is_made_in_half_precision_is_made_in_fp32():
    """By a dtype of its own, which no region without autocast changes."""
    report, errors = watched(differs)
    made = Site("", "zeros", "output", Phase.FORWARD, "bfloat16", "train.py", 30)
    assert _in_fp32(report, replace(errors[0], sites=(made,))) == ("# train.py:30: dtype=torch.float32",)
    wide = made._replace(dtype="float32")
    assert _in_fp32(report, replace(errors[0], sites=(wide,)))[0].startswith("with torch.autocast(")


class Centred(nn.Module):
    """Divides by a deviation that is the difference of two means, of numbers that are large beside it."""

    def forward(self, x):
        x = x + 30.0
        middle = x.mean(1, keepdim=True)
        spread = (x * x).mean(1, keepdim=True) - middle * middle
        return (x - middle) / (spread.clamp(min=0) + 1e-2).sqrt()


class CentredAsAdvised(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            x = x.float() + 30.0
            middle = x.float().mean(1, keepdim=True)
            spread = (x.float() * x.float()).mean(1, keepdim=True) - middle * middle
        return (x - middle) / (spread.clamp(min=0) + 1e-2).sqrt()


@pytest.mark.parametrize("kind", [Centred, CentredAsAdvised])
def test_what_a_difference_of_two_means_is_computed_from_is_to_be_in_fp32_as_well(kind):
    centred = kind()

    def loss_of(model, x):
        return centred(model(x) * 0.3).float().sub(x[:, :4]).square().mean()

    _, errors = watched(loss_of)
    assert bool(errors) is (kind is Centred)
    for first in errors[:1]:
        assert first.origin.line == line_of(Centred.forward, "spread =")
        assert f"{line_of(Centred.forward, 'x + 30.0')} to this line" in "\n".join(first.fix)


class Levelled(torch.autograd.Function):
    """Gives back a gradient of a given norm, which it computes in the gradient's own precision."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        norm = grad.pow(2).sum().sqrt()
        return grad / norm


class LevelledAsAdvised(Levelled):
    @staticmethod
    def backward(ctx, grad):
        norm = grad.float().pow(2).sum().sqrt()
        return (grad.float() / norm).to(grad.dtype)


@pytest.mark.parametrize("kind", [Levelled, LevelledAsAdvised])
def test_what_only_a_scale_below_one_would_fit_is_to_be_in_fp32(kind):
    def loss_of(model, x):
        return 3e5 * kind.apply(model(x)).float().sub(x[:, :4]).square().mean()

    _, errors = watched(loss_of, init=1.0)
    assert bool(errors) is (kind is Levelled)
    for first in errors[:1]:
        assert first.origin.line == line_of(Levelled.backward, "grad.pow")
        assert first.fix[0] == REGION
        assert ".to(grad.dtype)" in first.fix[-1]


@pytest.mark.parametrize(("init", "placed"), [(1.0, True), (2.0**16, False)])
def test_a_scaler_that_begins_far_too_low_is_said_where_it_is_made(init, placed):
    def loss_of(model, x):
        return 1e-7 * (model(x).float() - x[:, :4]).square().mean()

    _, errors = watched(loss_of, init=init)
    assert bool(errors) is placed
    for first in errors[:1]:
        assert (first.code, first.origin.line) == ("AMP201", line_of(watched, "torch.amp.GradScaler"))
        assert "init_scale=2.0**" in first.fix[0]


class Noisy(nn.Module):
    """Gives the chance that a kind is heard in any of some frames."""

    def __init__(self):
        super().__init__()
        self.kind = nn.Linear(8, 4)
        with torch.no_grad():
            self.kind.weight.mul_(0.1)
            self.kind.bias.copy_(torch.tensor([-1.0, -8.0, -9.0, -9.0]))

    def forward(self, frames, *, wide):
        heard = torch.sigmoid(self.kind(frames))
        heard = heard.float() if wide else heard
        silent = (1.0 - heard).prod(1)
        return 1.0 - silent


@pytest.mark.parametrize("wide", [True, False])
def test_what_is_one_but_for_little_is_named_where_it_is_rounded(wide):
    """Most of the chances are zero then, beside one that is large; the loss divides by them, and is off by far more."""
    torch.manual_seed(0)
    model, session = Noisy(), Session(Schedule(), as_cuda=True)
    frames = torch.randn(64, 6, 8)
    with session.watching():
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            with torch.autocast("cuda", torch.bfloat16):
                chance = model(frames, wide=wide)
            chance = chance.float().clamp(1e-6, 1 - 1e-6)
            loss = nn.functional.binary_cross_entropy(chance, torch.full((64, 4), 0.1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ([] if wide else ["AMP501"])
    for first in errors:
        assert first.origin.line == line_of(Noisy.forward, "silent = ")
        assert "from " not in first.fix[1]  # the layer's own rounding does no harm


def phases(directions, angle):
    turns = 5e3 * (directions @ angle)
    return turns.cos()


class ComputedAgain(torch.autograd.Function):
    """Keeps only what goes in; the backward computes the rest again, within autocast or not."""

    @staticmethod
    def forward(ctx, directions, angle, again):
        ctx.save_for_backward(directions, angle)
        ctx.again = again
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            return phases(directions, angle)

    @staticmethod
    def backward(ctx, grad):
        directions, angle = (one.detach().requires_grad_() for one in ctx.saved_tensors)
        with torch.enable_grad(), torch.autocast("cuda", torch.float16, enabled=ctx.again):
            out = phases(directions, angle)
        return *torch.autograd.grad(out, (directions, angle), grad.to(out.dtype)), None


@pytest.mark.parametrize("again", [True, False])
def test_what_the_backward_computes_again_in_half_precision_only_is_named(again):
    rounded = torch.rand(200) * 5e3
    assert (rounded.half().float().cos() - rounded.cos()).norm() > 0.1 * rounded.cos().norm()
    directions = torch.rand(16, 32)

    def loss(model, x):
        beside = ComputedAgain.apply(directions, 1.0 + 1e-3 * model[0].weight, again)
        return beside.square().mean() + 1e-3 * model(x).square().mean()

    _, errors = watched(loss)
    if not again:
        assert errors == []
        return
    assert errors[0].code == "AMP501"
    assert "again in float16, which the forward has in FP32" in errors[0].message
    assert errors[0].origin.line == line_of(phases, "directions @ angle")
    assert "as the forward does" in errors[0].fix[0]


def at_the_limit(model, x):
    chance = torch.sigmoid(model(x).abs() * 16.0 + 8.0)
    left = 1 - chance
    return -torch.log(left + 1e-8).mean()


def near_zero(model, x):
    positive = torch.relu(model(x))
    return -torch.log(positive + 1e-8).mean()


@pytest.mark.parametrize(("loss", "limited"), [(at_the_limit, True), (near_zero, False)])
def test_a_sigmoid_at_its_limit_is_named_with_the_logarithm_of_what_it_leaves(loss, limited):
    assert 1 - torch.sigmoid(torch.tensor(9.0).half()) == 0 < 1 - torch.sigmoid(torch.tensor(9.0))
    _, errors = watched(loss)
    assert errors[0].code == "AMP103"
    assert errors[0].origin.line == line_of(loss, "torch.log(")
    line = line_of(at_the_limit, "torch.sigmoid")
    said = f"# and the same at {errors[0].origin.file}:{line}, where sigmoid rounds to its limit"
    assert (said in errors[0].fix) is limited
    assert any("rounds to its limit" in one for one in errors[0].fix) is limited
