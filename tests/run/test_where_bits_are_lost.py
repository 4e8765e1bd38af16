"""The line that is named is the one that loses the bits, not one before it that does no harm."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.diagnose.rules.backward import is_rebuilt, lost_in_backward
from ampcheck.diagnose.rules.causes import _largest_first
from ampcheck.diagnose.rules.rounding import _place, _vanishes
from ampcheck.diagnose.rules.taken import _cast_on_the_way
from ampcheck.diagnose.suspects import beginning
from ampcheck.observe.reference.lineage import error_jumps
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.formats import BF16, FP16
from ampcheck.values.loop import Kind
from ampcheck.values.settings import Schedule
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import ErrorJump, PairError, Phase, Site


def errors(model, loss_of, dtype, *, lr=1e-3, steps=6):
    """Train without a loss scale; return the errors of the report."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        optimizer = torch.optim.SGD(model.parameters(), lr)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                loss = loss_of(model)
            loss.backward()
            optimizer.step()
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


def gradients(model, loss_of, dtype):
    """Return the gradients of one backward, in FP32 where no dtype is given."""
    model.zero_grad()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = loss_of(model)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


class Refiner(nn.Module):
    """Moves positions of pixels by what it computes; only how far they have come enters the loss."""

    def __init__(self):
        super().__init__()
        self.moves = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))

    def forward(self, x):
        start = torch.arange(64.0).to(self.moves(x).dtype)
        here = start
        for _ in range(2):
            way = here.detach() - start
            here = here.detach() + 0.1 * self.moves(x) - 0.01 * way
        return here - start


def refined(model):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return (model(x).float() - 0.05).square().mean()


def test_of_what_a_difference_is_made_of_the_sum_that_was_rounded_is_named():
    torch.manual_seed(0)
    model = Refiner()
    low, wide = (gradients(model, refined, dtype) for dtype in (torch.bfloat16, None))
    assert (low - wide).norm() > 0.3 * wide.norm()
    first = errors(model, refined, torch.bfloat16)[0]
    assert (first.code, first.origin.line) == ("AMP501", line_of(Refiner.forward, "here.detach() +"))


class Depths(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            *(layer for width in (1, 16, 16) for layer in (nn.Conv2d(width, 16, 3, padding=1), nn.Tanh())),
            nn.Conv2d(16, 1, 3, padding=1),
        )
        nn.init.normal_(self.net[-1].weight, std=1e-4)


def smooth(model):
    """Return a small loss of many pixels, with a term for steps from pixel to pixel that is far smaller still."""
    x = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    out = model.net(x).float()
    return 1e-3 * ((out - 0.05 * x).square().mean() + 1e-4 * (out[..., 1:] - out[..., :-1]).abs().mean())


def test_gradients_that_are_too_small_without_a_scale_are_said_where_the_backward_begins():
    """The sign of a step from pixel to pixel is often wrong, and moves nothing."""
    torch.manual_seed(0)
    model = Depths()
    first = errors(model, smooth, torch.float16)[0]
    assert first.code == "AMP408"
    assert first.origin.line == line_of(errors, "loss.backward()")


@pytest.mark.parametrize("reset", [torch.Tensor.zero_, lambda held: held.fill_(0.0)])
def test_what_sets_a_counter_back_is_not_what_loses_counts(reset):
    counts = torch.zeros(4, dtype=torch.bfloat16)

    def counted(model):
        reset(counts)
        for _ in range(300):
            counts.add_(1.0)
        return model(torch.randn(4, 8)).square().mean()

    torch.manual_seed(0)
    first = errors(nn.Linear(8, 4), counted, torch.bfloat16, steps=24)[0]
    assert counts.tolist() == [256.0] * 4
    assert math.log2(counts[0]) == torch.finfo(torch.bfloat16).bits // 2
    assert (first.code, first.origin.line) == ("AMP504", line_of(counted, "counts.add_"))


class Momentum(torch.autograd.Function):
    """v <- 0.6 v + 0.4 f(x), x <- x + v in each block; the backward rebuilds x and v instead of keeping them."""

    @staticmethod
    def forward(ctx, x, v, blocks, *weights):
        with torch.no_grad():
            for block in blocks:
                v = 0.6 * v + 0.4 * block(x)
                x = x + v
        ctx.blocks = blocks
        ctx.save_for_backward(x, v)
        return x, v

    @staticmethod
    def backward(ctx, gx, gv):
        (x, v), found = ctx.saved_tensors, {}
        for block in reversed(ctx.blocks):
            x = x - v
            with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16):
                begun = x.detach().requires_grad_()
                y = block(begun)
            gv = gv + gx
            own = list(block.parameters())
            grads = torch.autograd.grad(y, [begun, *own], 0.4 * gv.to(y.dtype))
            v = (v - 0.4 * y.detach()) / 0.6
            gx, gv = gx + grads[0], 0.6 * gv
            found.update(zip(own, grads[1:], strict=True))
        return (gx, gv, None, *(found[one] for block in ctx.blocks for one in block.parameters()))


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 32), nn.Linear(32, 8)
        blocks = (
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
            for _ in range(16)
        )
        self.blocks = nn.ModuleList(blocks)


@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
def test_numbers_that_a_backward_rebuilds_are_named_there_unless_they_are_held_in_fp32(held):
    def loss_of(model):
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
        begun = model.encode(x).to(held)
        weights = [one for block in model.blocks for one in block.parameters()]
        out, _ = Momentum.apply(begun, torch.zeros_like(begun), list(model.blocks), *weights)
        return (model.decode(out).float() - x.sin()).square().mean()

    torch.manual_seed(0)
    found = errors(Stream(), loss_of, torch.bfloat16)
    if held is torch.float32:
        assert not found
        return
    lines = {line_of(Momentum.backward, text) for text in ("x = x - v", "v = (v -")}
    assert found[0].code == "AMP501"
    assert found[0].origin.line in lines
    (fix,) = found[0].fix
    said, _, places = fix.partition(", at ")
    assert said == "# rebuilt here from numbers held in bf16: hold them in FP32 where the forward makes them"
    makes = [line_of(Momentum.forward, text) for text in ("v = 0.6", "x = x + v")]
    assert [int(place.rpartition(":")[2]) for place in places.split(" and ")] == makes


def site(op, line, phase=Phase.FORWARD, module=""):
    return Site(module, op, "output", phase, "bfloat16", "script.py", line)


def off_by(error, size=1.0):
    """Return a comparison of numbers of a size that are off by a part of it."""
    return PairError(100, 100, 0, 100 * (error * size) ** 2, 0.0, 100 * size**2)


@pytest.mark.parametrize("exact", [0.0, 0.001])
def test_a_result_that_is_exact_has_lost_no_bits(exact):
    start, moved, way = site("_to_copy", 1), site("add", 2), site("sub", 3)
    errors = {start: off_by(exact), moved: off_by(0.002), way: off_by(0.5)}
    (jump,) = error_jumps({start: (), moved: (start,), way: (start, moved)}, errors, "bfloat16")
    assert (jump.site, jump.dropped) == (way, start if exact else moved)


@pytest.mark.parametrize("carried", [False, True])
def test_a_second_cast_by_one_line_is_as_far_off_as_what_it_casts_and_no_jump(carried):
    """Both have the place of the first, which stands before what the second is made of."""
    small, cast, product, far = site("addmm", 1), site("_to_copy", 4), site("mm", 2), site("sub", 3)
    sources = {small: (), cast: (small, far), product: (cast,) if carried else (), far: (product,)}
    errors = {small: off_by(0.003), cast: off_by(0.7), product: off_by(0.002), far: off_by(1.0)}
    jumps = error_jumps(sources, errors, "bfloat16")
    assert [one.site for one in jumps] == ([cast] if carried else []) + [far]
    assert jumps[-1].dropped == product


@pytest.mark.parametrize(("op", "itself"), [("_to_copy", True), ("sub", False)])
def test_a_cast_makes_no_earlier_error_larger_so_that_it_is_named_itself(op, itself):
    jump = ErrorJump(site(op, 4), 0.0005, 0.34, site("addmm", 3))
    assert beginning(SimpleNamespace(errors={}), jump) == (jump.site if itself else jump.dropped)


@pytest.mark.parametrize("phase", [Phase.RECOMPUTE, Phase.FORWARD])
def test_what_a_backward_computes_again_is_not_named_for_what_it_rebuilds_from_that(phase):
    rebuilt, again = site("sub", 56, Phase.BACKWARD), site("addmm", 29, phase)
    product = rebuilt._replace(op="mul")
    report = SimpleNamespace(
        low=SimpleNamespace(sites=dict.fromkeys([again, rebuilt], TensorStats())),
        errors={product: None, rebuilt: None},
    )
    for jump in (rebuilt, product):
        named = _place(report, ErrorJump(jump, 0.01, 10.0, again))
        assert named == (rebuilt if phase is Phase.RECOMPUTE else again)


@pytest.mark.parametrize(
    ("op", "lost", "named"), [("rsub", 60, True), ("rsub", 40, False), ("mul", 60, False)]
)
def test_a_difference_of_which_most_is_zero_is_where_it_begins(op, lost, named):
    jump = ErrorJump(site(op, 39), 0.009, 0.17, site("rsub", 38))
    report = SimpleNamespace(errors={jump.site: PairError(100, 100, lost, 3.0, 0.0, 100.0)})
    assert _vanishes(report, [jump]) is named
    assert not _vanishes(report, [])


@pytest.mark.parametrize(("larger", "before", "named"), [(0.6, 0.0, 4), (0.6, 0.5, 2), (0.1, 0.0, 2)])
def test_the_jump_of_right_numbers_that_is_many_times_the_first_one_is_the_cause(larger, before, named):
    small = ErrorJump(site("grid_sampler_2d", 2), 0.005, 0.051, site("convolution", 1))
    large = ErrorJump(site("sub", 4), before, larger, site("add", 3))
    assert _largest_first([small, large])[0].site.line == named


@pytest.mark.parametrize(("size", "error", "line"), [(1e3, 1e-4, 9), (1e3, 0.2, 1), (2.0, 1e-4, 1)])
def test_what_goes_under_in_a_sum_is_not_where_the_backward_loses_bits(size, error, line):
    steps = [
        (site("mul", 1, Phase.BACKWARD), off_by(0.2)),
        (site("sgn", 2, Phase.BACKWARD), off_by(0.3, 1e4)),
        (site("neg", 3, Phase.BACKWARD), off_by(0.3)),
        (site("mse_loss_backward", 4, Phase.BACKWARD), off_by(1e-4, size)),
        (site("add", 5, Phase.BACKWARD), off_by(error, size)),
        (site("mm", 9, Phase.BACKWARD, "net"), off_by(0.4, size)),
    ]
    report = SimpleNamespace(errors=dict(steps), low=SimpleNamespace(sites=dict(steps)), format=BF16)
    assert lost_in_backward(report)[0].line == line


class Tiny(nn.Module):
    """Its results and its targets are far below what fp16 tells apart."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return 1.5e-8 * self.inner(x).float()


def pack(tensor):
    if tensor.dtype is torch.float32 and tensor.dim() and tensor.shape[0] == 64:
        return torch.float32, tensor.half()
    return tensor.dtype, tensor


def unpack(kept):
    return kept[1].to(kept[0])


def of_tiny(model, packs=pack):
    torch.manual_seed(1)
    x = torch.randn(64, 8)
    with torch.autograd.graph.saved_tensors_hooks(packs, unpack):
        return nn.functional.mse_loss(model(x), 1.5e-8 * x[:, :1].sin()) / 1.5e-8**2


def test_a_cast_that_is_off_by_itself_is_named_and_not_what_was_rounded_before_it():
    torch.manual_seed(0)
    model = Tiny()
    wide = gradients(model, lambda model: of_tiny(model, lambda tensor: (tensor.dtype, tensor)), None)
    assert float((gradients(model, of_tiny, None) - wide).norm()) > 0.5 * float(wide.norm())
    found = errors(model, of_tiny, torch.float16)
    assert found[0].origin.line == line_of(pack, "tensor.half()")


class Pressure(nn.Module):
    """Gives numbers near 1000 of which hundredths matter: bf16 has steps of 4 there."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 1)
        nn.init.constant_(self.head.bias, 1016.0)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def of_pressure(model):
    torch.manual_seed(1)
    x = torch.randn(64, 8)
    return nn.functional.smooth_l1_loss(model(x).float(), 1016.0 + 0.05 * x[:, 0], beta=0.5)


def test_a_difference_that_shows_in_the_backward_only_is_named_where_its_bits_were_rounded_away():
    torch.manual_seed(0)
    model = Pressure()
    wide = gradients(model, of_pressure, None)
    assert float((gradients(model, of_pressure, torch.bfloat16) - wide).norm()) > 0.3 * float(wide.norm())
    found = errors(model, of_pressure, torch.bfloat16)
    assert [one.code for one in found] == ["AMP501"]
    assert found[0].origin.line == line_of(Pressure.forward, "self.head")


class Tones(nn.Module):
    """Tones of thousands of radians; how far each is off its pitch is learned."""

    def __init__(self):
        super().__init__()
        self.pitch, self.detune = 200.0 + 100.0 * torch.rand(16, 1), nn.Parameter(torch.zeros(16, 1))
        self.body = nn.Linear(64, 64)

    def forward(self):
        angle = 2 * math.pi * (self.pitch + self.detune) * torch.arange(64.0) / 8.0
        return self.body(torch.sin(angle)).float()


def packed(tensor):
    return tensor.dtype, tensor.to(torch.bfloat16)


def tuned(pack, steps=6):
    """Train with activations packed by `pack`; return the report's errors and the gradient of the detuning."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = Tones()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            wanted = (
                Tones()()
            )  # made in half precision, and saved by the loss of each step at the line that packs
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps):
            saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1].to(kept[0]))
            with saving, torch.autocast("cuda", torch.bfloat16):
                loss = (model() - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return errors, model.detune.grad


def test_an_angle_that_is_saved_too_coarsely_is_said_where_it_is_packed():
    errors, low = tuned(packed)
    none, wide = tuned(lambda tensor: (tensor.dtype, tensor))
    assert (low - wide).norm() > 0.5 * wide.norm()
    assert (errors[0].code, errors[0].origin.line) == ("AMP501", line_of(packed, "tensor.to"))
    assert none == []


class Slope(torch.autograd.Function):
    """What a black box does at two points, for the slope between them."""

    @staticmethod
    def box(x):
        return 0.01 * (x - 30.0).square().float()

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Slope.box(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        after, before = Slope.box(x + 0.01), Slope.box(x - 0.01)
        return grad * (after - before) / 0.02


@pytest.mark.parametrize("wide", [False, True])
def test_a_slope_between_two_points_is_lost_where_the_points_are_rounded(wide):
    """Bfloat16 has steps of 0.25 at 40: a point 0.01 further on is the same point."""
    torch.manual_seed(0)
    x, head = torch.randn(64, 8), nn.Linear(8, 8)
    with torch.no_grad():
        head.bias += 40

    def loss_of(model):
        places = model(x)
        return Slope.apply(places.float() if wide else places).mean()

    points = torch.full((4,), 40.0, dtype=torch.bfloat16)
    assert torch.equal(points + 0.01, points)
    found = errors(head, loss_of, torch.bfloat16)
    assert [(one.code, one.origin.line) for one in found] == (
        [] if wide else [("AMP501", line_of(Slope.backward, "x + 0.01"))]
    )


@pytest.mark.parametrize("unscales", [Kind.UNSCALE, Kind.DIVISOR, None])
@pytest.mark.parametrize(("cast", "named"), [("_to_copy", True), ("mul", False)])
def test_a_cast_behind_the_backward_is_what_to_leave_out_once_gradients_are_unscaled(cast, named, unscales):
    before, backward, behind = site("_to_copy", 1), site("mm", 2, Phase.BACKWARD), site(cast, 3)
    report = SimpleNamespace(
        loop=SimpleNamespace(count=lambda kind: kind is unscales),
        low=SimpleNamespace(sites=dict.fromkeys([before, backward, behind], TensorStats())),
    )
    assert _cast_on_the_way(report) == (behind if named and unscales else None)


def weighted(model, trust, x, *, wide):
    with torch.autocast("cuda", enabled=not wide, dtype=torch.float16):
        error = model(x)[:, 0].float() - x.sum(1)
    return (torch.sigmoid(trust) * error.square().view(4, -1)).mean()


def moved(weights, direction, by):
    with torch.no_grad():
        for one, way in zip(weights, direction, strict=True):
            one.add_(way.to(one.dtype), alpha=by)


def exactly(model, trust, x, direction):
    """Return the same difference in double precision."""
    model, trust = copy.deepcopy(model).double(), trust.detach().double().requires_grad_()
    sides = []
    for by in (1e-5, -2e-5):
        moved(list(model.parameters()), direction, by)
        error = (model(x.double())[:, 0] - x.double().sum(1)).square().view(4, -1)
        sides.append(torch.autograd.grad((torch.sigmoid(trust) * error).mean(), trust)[0])
    return (sides[0] - sides[1]) / 2e-5


def hypergradient(*, wide, steps=8, eps=1e-5):
    """Step weights of data by a difference of two gradients; return what that was made of, and it."""
    torch.manual_seed(0)
    model, trust = (
        nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)),
        torch.zeros(4, 1, requires_grad=True),
    )
    outer, weights, seen = torch.optim.SGD([trust], 1e-3), [*model.parameters()], []
    for _ in range(steps):
        x, clean = torch.randn(64, 8), torch.randn(64, 8)
        with torch.autocast("cuda", torch.float16):
            loss = (model(clean)[:, 0].float() - clean.sum(1)).square().mean()
        direction = [one / 2.0**10 for one in torch.autograd.grad(loss * 2.0**10, weights)]
        held, sides = copy.deepcopy(model), []
        for by in (eps, -2 * eps):
            moved(weights, direction, by)
            sides.append(
                torch.autograd.grad(weighted(model, trust, x, wide=wide) * 2.0**10, trust)[0] / 2.0**10
            )
        outer.zero_grad()
        trust.grad = (sides[0] - sides[1]) / (2 * eps)
        seen.append((held, trust.detach().clone(), x, direction, trust.grad))
        outer.step()
    return seen


@pytest.mark.parametrize("wide", [True, False])
def test_a_difference_of_gradients_loses_its_bits_in_the_last_forward_before_it(wide):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        seen = hypergradient(wide=wide)
    off = [float((grad - exactly(*given)).norm() / exactly(*given).norm()) for *given, grad in seen]
    assert (max(off) > 0.3) is not wide
    found = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(found) is not wide
    assert all(one.origin.line == line_of(weighted, "error = model(x)") for one in found[:1])


@pytest.mark.parametrize(("log2_scale", "rebuilt"), [(-20, True), (0, True), (15, False)])
def test_what_overflows_at_a_scale_that_leaves_it_room_is_no_gradient_but_rebuilt(log2_scale, rebuilt):
    divided = site("div", 5, Phase.BACKWARD)
    report = SimpleNamespace(
        low=SimpleNamespace(sites={divided: TensorStats(infs=3)}),
        reference=SimpleNamespace(sites={divided: TensorStats(amax=12.0)}),
        log2_scale=log2_scale,
        format=FP16,
    )
    assert (12.0 * 2.0**log2_scale <= torch.finfo(torch.float16).max) is rebuilt
    assert is_rebuilt(report, divided) is rebuilt
