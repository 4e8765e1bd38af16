"""What scripts keep beside their models, and lose to half precision: sums of hooks and passes, late and loaded ones."""

import copy
from types import SimpleNamespace

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.reference.fed_back import FED_BACK
from ampcheck.observe.script.held_state import HeldState
from ampcheck.observe.script.state.loaded import lost_in_loading
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health


def errors_of(train, *given):
    """Return the errors that a training has by ampcheck, and what it returns."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        out = train(*given)
    return [one for one in session.report("script.py").findings if one.severity is Severity.ERROR], out


class Effects:
    """Adds up the squared effect of each output on the loss, from what a hook is given."""

    def __init__(self, *, wide):
        self.wide, self.sums = wide, torch.zeros(16)

    def watch(self, _module, _inputs, output):
        output.register_hook(lambda grad: self.add(output.detach(), grad))

    def add(self, output, grad):
        effect = (output * (grad.float() if self.wide else grad)).sum(0)
        self.sums += effect.pow(2)


def prunes(*, wide):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    effects, steps = Effects(wide=wide), torch.optim.SGD(model.parameters(), 1e-3)
    model[0].register_forward_hook(effects.watch)
    scaler = torch.amp.GradScaler("cuda", 2.0**14)
    for _ in range(8):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(32, 8)).float().square().mean()
        steps.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()
    return effects.sums, scaler.get_scale()


@pytest.mark.parametrize("wide", [False, True])
def test_a_sum_outside_of_the_model_that_a_hook_makes_infinite_is_an_error_at_its_line(wide):
    errors, (sums, scale) = errors_of(lambda: prunes(wide=wide))
    assert scale == 2.0**14  # no step was skipped
    assert bool(sums.isfinite().all()) is wide
    assert bool(errors) is not wide
    if errors:
        assert errors[0].origin.line == line_of(Effects.add, "effect.pow(2)")
        assert "sums is not finite" in errors[0].message + " ".join(errors[0].follows)


def test_what_a_model_holds_and_its_gradients_are_not_said_again_as_lying_outside():
    model, outside = nn.Linear(2, 2), torch.zeros(2)
    model.register_buffer("kept", torch.zeros(2), persistent=False)
    model.weight.grad = torch.zeros(2, 2)
    finite = {id(one): one.clone() for one in (model.kept, model.weight.grad, outside)}
    state = HeldState(SimpleNamespace(of=lambda one: finite.get(id(one)), copies=()), None, lambda: 1.0)
    state.remember(iter([("model", model)]))
    for one in (model.kept, model.weight.grad, outside):
        one.fill_(float("inf"))
    state.compare(iter([("model", model)]))
    off = state.off(overflowed=False)
    assert [one.saved for name, one in off.items() if name == "model.kept"] == [False]
    assert len(off) == 2
    assert state.off(overflowed=True).keys() == {"model.kept"}


def importance(model, dtype, passes=60):
    """Return how much the loss depends on each weight, in a pass over data without a step."""
    net = copy.deepcopy(model).half()
    squares = {n: torch.zeros_like(p, dtype=dtype) for n, p in net.named_parameters()}
    for _ in range(passes):
        net.zero_grad()
        (1e-3 * net(torch.randn(256, 8).half()).float()).square().sum().backward()
        for n, p in net.named_parameters():
            grad = p.grad if dtype is torch.float16 else p.grad.float()
            squares[n] += grad.detach() ** 2 / passes
    return {n: one.double() for n, one in squares.items()}


def consolidates(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    steps = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(12):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(32, 8)).float().square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
    return sum(float(one.sum()) for one in importance(model, dtype).values())


def test_squares_that_are_zero_in_float16_before_they_are_added_in_a_pass_are_an_error():
    low_errors, low = errors_of(consolidates, torch.float16)
    errors, wide = errors_of(consolidates, torch.float32)
    assert low < 0.7 * wide
    assert not errors
    assert [one.code for one in low_errors] == ["AMP504"]
    assert low_errors[0].origin.line == line_of(importance, "squares[n] +=")
    lines = [line_of(importance, "torch.zeros_like"), line_of(importance, "squares[n] +=")]
    assert all(any(f"test_left_outside.py:{line}" in fix for fix in low_errors[0].fix) for line in lines), (
        low_errors[0]
    )


class Late:
    """Counts what was seen, from some step on."""

    def __init__(self, dtype):
        self.dtype, self.count = dtype, None

    def update(self, labels):
        if self.count is None:
            self.count = torch.zeros(4, dtype=self.dtype)
        self.count.index_add_(0, labels, torch.ones(len(labels), dtype=self.dtype))


def counts(dtype):
    torch.manual_seed(0)
    model, late = nn.Linear(8, 4), Late(dtype)
    steps = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(80):
        labels = torch.randint(4, (256,))
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.randn(256, 8)), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        if step >= 30:
            late.update(labels)
    return float(late.count.sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_count_that_begins_late_in_a_training_is_followed(dtype):
    errors, count = errors_of(counts, dtype)
    assert (count == 256 * 50) is (dtype is torch.float32)
    assert [one.code for one in errors] == (["AMP504"] if dtype is torch.bfloat16 else [])
    if errors:
        assert errors[0].origin.line == line_of(Late.update, "index_add_")


class WideState(torch.optim.Optimizer):
    """Keeps its second moment in FP32, whatever its weights are."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["square"] = torch.zeros_like(p, dtype=torch.float32)
                state["square"].mul_(0.99).addcmul_(p.grad.float(), p.grad.float(), value=0.01)
                p.copy_(p.float() - 1e-3 * p.grad.float() / (state["square"].sqrt() + 1e-8))


def resumes(size, *, puts_back=False):
    torch.manual_seed(0)
    model, saved = nn.Linear(16, 4).half(), None
    for _ in range(2):
        steps = WideState(model.parameters())
        if saved is not None:
            steps.load_state_dict(saved)
            params = [p for group in steps.param_groups for p in group["params"]]
            for p, was in zip(params, saved["state"].values(), strict=True) if puts_back else ():
                steps.state[p]["square"] = was["square"].clone()
        for _ in range(6):
            steps.zero_grad()
            (size * model(torch.randn(32, 16).half()).float()).square().mean().backward()
            steps.step()
        saved = copy.deepcopy(steps.state_dict())
    return saved


@pytest.mark.parametrize(("size", "lost"), [(3e-3, True), (1.0, False)])
def test_a_state_that_load_state_dict_casts_to_zeros_is_an_error_at_that_line(size, lost):
    errors, saved = errors_of(resumes, size)
    squares = [state["square"] for state in saved["state"].values()]
    assert all(one.dtype is torch.float16 for one in squares)
    found = [one for one in errors if "load_state_dict casts" in one.message]
    assert bool(found) is lost
    if lost:
        assert found[0].origin.line == line_of(resumes, "load_state_dict(saved)")
        assert (
            found[0].fix[-1].strip() == 'optimizer.state[p]["square"] = was["square"].clone()'
        )  # once for all


def test_a_state_that_is_put_back_in_fp32_after_loading_as_is_advised_is_no_error():
    errors, saved = errors_of(lambda: resumes(3e-3, puts_back=True))
    assert all(state["square"].dtype is torch.float32 for state in saved["state"].values())
    assert not [one for one in errors if "load_state_dict" in one.message]


class Named:
    """A state that is no mapping."""


def test_an_optimizer_with_a_state_of_its_own_kind_is_loaded_as_ever():
    held = nn.Parameter(torch.ones(4, dtype=torch.float16))
    steps = torch.optim.SGD([held])
    saved = {"state": {0: {"it": torch.full((4,), 1e-9)}}, "param_groups": steps.state_dict()["param_groups"]}
    steps.state[held] = Named()
    assert not [*lost_in_loading(steps, saved, ("script.py", 3))]
    assert not [
        *lost_in_loading(steps, {"state": None, "param_groups": saved["param_groups"]}, ("script.py", 3))
    ]


def test_only_what_becomes_zero_or_infinite_in_loading_is_lost():
    held = nn.Parameter(torch.ones(4, dtype=torch.float16))
    steps = torch.optim.SGD([held])
    for number, lost in ((1e-9, 4), (1e6, 4), (1e-3, 0), (0.0, 0)):
        saved = {
            "state": {0: {"it": torch.full((4,), number)}},
            "param_groups": steps.state_dict()["param_groups"],
        }
        steps.load_state_dict(saved)
        assert bool((steps.state[held]["it"].float() == number).all()) or number != 0
        found = [*lost_in_loading(steps, saved, ("script.py", 3))]
        assert [one.stuck + one.wrong for one in found] == [lost] * bool(lost)
    assert not [*lost_in_loading(steps, {}, ("script.py", 3))]


def iou(first, second):
    areas = [(one[:, 2] - one[:, 0]) * (one[:, 3] - one[:, 1]) for one in (first, second)]
    corners = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    size = (corners - torch.maximum(first[:, None, :2], second[None, :, :2])).clamp(min=0)
    both = size[..., 0] * size[..., 1]
    return both / (areas[0][:, None] + areas[1][None] - both)


def matches(anchors, boxes):
    best, _ = iou(anchors, boxes).max(1)
    return best > 0.5


def detects(side, dtype=torch.float16):
    """Train a score of anchors, of which those that match a box are right ones; return how many match."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    steps, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**8)
    corners = side * torch.arange(12.0)[:, None].repeat(1, 2) / 12
    anchors = torch.cat([corners, corners + side], 1)
    matched = 0
    for step in range(24):
        boxes = anchors[step % 12 :: 3] + 0.01 * side * torch.rand(1)
        with torch.autocast("cuda", torch.float16):
            score = model(torch.randn(12, 8)).squeeze(1)
            right = matches(anchors.to(dtype), boxes.to(dtype))
            chosen = right if bool(right.any()) else ~right
            loss = nn.functional.binary_cross_entropy_with_logits(score[chosen], right[chosen].float())
        matched += int(right.sum())
        steps.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(steps)
        scaler.update()
    return matched


@pytest.mark.parametrize(("side", "dtype", "lost"), [
    (400.0, torch.float16, True), (400.0, torch.float32, False), (40.0, torch.float16, False)
])  # fmt: skip
def test_picks_among_numbers_that_overflowed_are_an_error(side, dtype, lost):
    errors, matched = errors_of(detects, side, dtype)
    assert (matched == 0) is lost
    assert [one.code for one in errors] == (["AMP510"] if lost else [])
    if lost:
        assert errors[0].origin.phase is Phase.FORWARD
        assert errors[0].origin.line in {line_of(matches, part) for part in (".max(1)", "best > 0.5")}
        assert "numbers have overflowed before it" in errors[0].message


class Inverse(nn.Module):
    """Keeps the inverse of a sum of outer products, by what the last one changes of it."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("it", 100 * torch.eye(size))

    def forward(self, x):
        return x

    def observe(self, x):
        y = self.it @ x
        self.it -= torch.outer(y, y) / (1 + x @ y)


def explores(*, wide):
    torch.manual_seed(0)
    model, inverse = nn.Linear(16, 16), Inverse(16)
    steps = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(24):
        with torch.autocast("cuda", torch.bfloat16):
            out = inverse(model(torch.randn(32, 16)))
            loss = out.float().square().mean()
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=not wide):
                for row in out.detach()[:8]:
                    inverse.observe(row.float())
        steps.zero_grad()
        loss.backward()
        steps.step()
    return inverse.it


@pytest.mark.parametrize("wide", [False, True])
def test_fp32_numbers_that_feed_on_themselves_through_half_precision_are_not_called_safe(wide):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        kept = explores(wide=wide)
    assert bool((torch.linalg.eigvalsh((kept + kept.mT) / 2) > 0).all()) is wide
    report = session.report("script.py")
    assert not [one for one in report.findings if one.severity is Severity.ERROR]
    assert wide or report.verdict.word is Health.PARTLY_AUDITED
    line = line_of(Inverse.observe, "self.it -=")
    assert any(f"test_left_outside.py:{line}: {FED_BACK}" in what for what in report.not_audited) is not wide
