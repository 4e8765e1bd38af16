"""Gradients that a script divides by its scale in part, too early, or twice; plain torch says what they come to."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

SCALE = 2.0**11


class Metric(nn.Module):
    """A body, a head that is not part of it, and parameters that play no part, or whose gradients are zero."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 5))
        self.centres = nn.Parameter(torch.randn(7, 5))
        self.unused = nn.Parameter(torch.ones(3))
        self.dead = nn.Parameter(torch.ones(5))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x):
        return (self.body(x) * self.frozen + self.dead * 0.0) @ self.centres.t()


def watched(train):
    """Return the errors and warnings of a loop, by code."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        train()
    found = session.report("script.py").findings
    errors = {one.code: one for one in found if one.severity is Severity.ERROR}
    return errors, {one.code for one in found if one.severity is Severity.WARNING}


def half():
    return torch.autocast("cuda", torch.float16)


def loss_of(model, rows=32):
    x, y = torch.randn(rows, 6), torch.randint(0, 7, (rows,))
    with half():
        return nn.functional.cross_entropy(model(x), y)


def in_place(gradients, scale):
    for gradient in gradients:
        gradient.div_(scale)


def by_foreach(gradients, scale):
    torch._foreach_mul_(gradients, 1.0 / scale)


def grads(parameters):
    return [one.grad for one in parameters if one.grad is not None]


def loop(divided, *, make=torch.optim.SGD, clip="", divide=in_place, scaler=False, head_rate=0.01, parts=1):
    """Train with what `divided` returns of a model divided by the scale."""

    def train():
        model = Metric()
        groups = [{"params": model.body.parameters()}]
        groups += [{"params": [model.centres, model.unused, model.dead], "lr": head_rate}]
        optimizer = make(groups, lr=0.01)
        own = torch.amp.GradScaler("cuda", init_scale=SCALE)
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(parts):
                loss = loss_of(model)
                (own.scale(loss) if scaler else loss * SCALE / parts).backward()
            divide(grads(divided(model)), own.get_scale() if scaler else SCALE)
            if clip == "hand":
                for one in grads(model.parameters()):
                    one.mul_(0.125)
            elif clip:
                nn.utils.clip_grad_norm_(
                    model.body.parameters() if clip == "body" else model.parameters(), 0.1
                )
            optimizer.step()

    return train


def all_of(model):
    return model.parameters()


def body(model):
    return model.body.parameters()


def factors(divided):
    """Return by what the gradients of a step are off against those of the loss itself: plain torch says so."""
    torch.manual_seed(0)
    model = Metric()
    loss = nn.functional.cross_entropy(model(torch.randn(32, 6)), torch.randint(0, 7, (32,)))
    plain = torch.autograd.grad(loss, [model.body[0].weight, model.centres], retain_graph=True)
    (loss * SCALE).backward()
    in_place(grads(divided(model)), SCALE)
    own = model.body[0].weight.grad, model.centres.grad
    return [round(float(one.norm() / other.norm())) for one, other in zip(own, plain, strict=True)]


@pytest.mark.parametrize("divide", [in_place, by_foreach])
@pytest.mark.parametrize("clip", ["", "body", "hand"])
def test_gradients_that_a_script_leaves_scaled_are_an_error_at_the_step(clip, divide):
    assert factors(body) == [1, SCALE]
    errors, _ = watched(loop(body, clip=clip, divide=divide))
    assert set(errors) == {"AMP403"}
    assert "model.centres" in errors["AMP403"].message
    assert "unused" not in errors["AMP403"].message
    assert "dead" not in errors["AMP403"].message
    assert errors["AMP403"].sites[0].file.endswith("test_divided_in_part.py")


def test_a_scalers_loss_is_no_other():
    assert set(watched(loop(body, scaler=True))[0]) == {"AMP403"}


@pytest.mark.parametrize("parts", [4, 10])
def test_a_loss_divided_by_the_number_of_its_parts_is_scaled_too(parts):
    assert set(watched(loop(body, parts=parts))[0]) == {"AMP403"}
    assert watched(loop(all_of, parts=parts))[0] == {}


def test_what_a_hook_divides_within_the_backward_is_divided():
    def train():
        model = Metric()
        model.centres.register_hook(lambda grad: grad / SCALE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            (loss_of(model) * SCALE).backward()
            in_place(grads(model.body.parameters()), SCALE)
            optimizer.step()

    assert "AMP403" not in watched(train)[0]


def test_where_they_are_clipped_with_the_others_the_clipping_is():
    errors, _ = watched(loop(body, clip="all"))
    assert set(errors) == {"AMP401"}
    assert "model.centres" in errors["AMP401"].message


def test_an_optimizer_that_does_not_mind_gets_a_warning():
    errors, warnings = watched(loop(body, make=torch.optim.Adam))
    assert not errors
    assert "AMP403" in warnings


@pytest.mark.parametrize("clip", ["", "all", "body", "hand"])
@pytest.mark.parametrize("divide", [in_place, by_foreach])
def test_where_all_are_divided_nothing_is_said(clip, divide):
    assert factors(all_of) == [1, 1]
    assert watched(loop(all_of, clip=clip, divide=divide)) == ({}, set())


def test_a_rate_that_makes_up_for_the_scale_is_no_error():
    assert "AMP403" not in watched(loop(body, head_rate=0.01 / SCALE))[0]


def test_a_loss_of_its_own_that_nobody_scaled_needs_no_division():
    def train():
        model, critic = Metric(), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            (loss_of(model) * SCALE).backward()
            critic(torch.randn(8, 5)).square().mean().backward()
            in_place(grads(model.parameters()), SCALE)
            optimizer.step()

    assert watched(train)[0] == {}


def test_an_average_beside_and_a_second_optimizer_divided_later_are_no_error():
    def train():
        model, average = Metric(), Metric()
        first = torch.optim.SGD(model.body.parameters(), lr=0.01)
        second = torch.optim.SGD([model.centres, model.dead], lr=0.01)
        for _ in range(6):
            first.zero_grad()
            second.zero_grad()
            (loss_of(model) * SCALE).backward()
            in_place(grads(model.body.parameters()), SCALE)
            first.step()
            in_place([model.centres.grad], SCALE)
            second.step()
            with torch.no_grad():
                for one, own in zip(average.parameters(), model.parameters(), strict=True):
                    one.lerp_(own, 0.01)

    assert watched(train)[0] == {}


def test_a_large_weight_of_the_loss_and_shortened_gradients_are_no_scale():
    def train():
        model = Metric()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(6):
            optimizer.zero_grad()
            (loss_of(model) * 100.0).backward()
            nn.utils.clip_grad_norm_(model.body.parameters(), 0.01)
            optimizer.step()

    assert "AMP403" not in watched(train)[0]


# -- divided too early


def accumulates(where, *, clears=False, divide=in_place, scaler=False):
    def train():
        model = Metric()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        own = torch.amp.GradScaler("cuda", init_scale=SCALE)
        for _ in range(4):
            total = [torch.zeros_like(one) for one in model.parameters()]
            optimizer.zero_grad()
            for _ in range(3):
                (own.scale(loss_of(model)) if scaler else loss_of(model) * SCALE).backward()
                if where == "within":
                    divide(grads(model.parameters()), SCALE)
                if clears:
                    for one, parameter in zip(total, model.parameters(), strict=True):
                        if parameter.grad is not None:
                            one.add_(parameter.grad)
                            parameter.grad.zero_()
            for one, parameter in zip(total, model.parameters(), strict=True):
                if clears and parameter.grad is not None:
                    parameter.grad.copy_(one)
            if where == "behind":
                divide(grads(model.parameters()), SCALE)
            optimizer.step()

    return train


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("divide", [in_place, by_foreach])
def test_a_division_within_an_accumulation_is_an_error_at_its_line(divide, scaler):
    errors, _ = watched(accumulates("within", divide=divide, scaler=scaler))
    assert set(errors) == {"AMP404"}
    assert errors["AMP404"].fix[-1].strip() in (
        "gradient.div_(scale)",
        "torch._foreach_mul_(gradients, 1.0 / scale)",
    )


@pytest.mark.parametrize("where", ["within", "behind"])
def test_one_behind_it_or_of_gradients_that_are_cleared_is_not(where):
    assert watched(accumulates(where, clears=where == "within"))[0] == {}


def test_gradients_of_an_optimizer_that_has_stepped_may_grow():
    def train():
        real, fake = nn.Linear(6, 1), nn.Linear(6, 6)
        first, second = (torch.optim.SGD(one.parameters(), lr=0.01) for one in (real, fake))
        for _ in range(6):
            for optimizer, model in ((first, real), (second, fake)):
                optimizer.zero_grad()
                with half():
                    loss = real(fake(torch.randn(16, 6))).square().mean()
                (loss * SCALE).backward()
                in_place(grads(model.parameters()), SCALE)
                optimizer.step()

    assert "AMP404" not in watched(train)[0]


# -- parameters of two optimizers


def tasks(*, shared=True, between="", rate=0.01, kinds=(torch.optim.SGD, torch.optim.SGD), **options):
    def train():
        trunk, heads = nn.Linear(6, 8), (nn.Linear(8, 2), nn.Linear(8, 3))
        first = kinds[0]([*trunk.parameters(), *heads[0].parameters()], lr=0.01, **options)
        own = [{"params": list(heads[1].parameters())}]
        own += [{"params": list(trunk.parameters()), "lr": rate}] if shared else []
        second = kinds[1](own, lr=0.01, **options)
        scaler = torch.amp.GradScaler("cuda", init_scale=SCALE)

        def loss():
            with half():
                h = torch.tanh(trunk(torch.randn(16, 6)))
                return sum((head(h).float() - 1.0).square().mean() for head in heads)

        for _ in range(5):
            first.zero_grad()
            second.zero_grad()
            scaler.scale(loss()).backward()
            if between == "clip":
                scaler.unscale_(first)
                nn.utils.clip_grad_norm_(trunk.parameters(), 0.01)
            scaler.step(first)
            if between.startswith("backward"):
                second.zero_grad(set_to_none=between == "backward")
                scaler.scale(loss()).backward()
            scaler.step(second)
            scaler.update()

    return train


def divided_by(options):
    """Return how much smaller a shared gradient is after the second step than after the first: torch says so."""
    trunk = nn.Parameter(torch.ones(4))
    first, second = (options["kinds"][0]([trunk], lr=0.0) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaler.scale(trunk.sum()).backward()
    scaler.step(first)
    once = trunk.grad.clone()
    scaler.step(second)
    return float(once[0] / trunk.grad[0])


@pytest.mark.parametrize("between", ["", "clip"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_gradients_that_two_optimizers_share_are_unscaled_twice(kind, between):
    options = {"kinds": (kind, kind)}
    assert divided_by(options) == SCALE
    errors, _ = watched(tasks(between=between, **options))
    assert set(errors) == {"AMP404"}
    assert "trunk.weight, trunk.bias" in errors["AMP404"].message


@pytest.mark.parametrize(
    "case", [{"shared": False}, {"between": "backward"}, {"between": "backward cleared"}, {"rate": 0.0}]
)
def test_two_optimizers_that_share_nothing_or_get_new_gradients_are_right(case):
    assert watched(tasks(**case))[0] == {}


# -- limits in scaled units


def limited(limit, *, init=SCALE, hand=False, reads=True):
    def train():
        model = Metric()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=init, growth_interval=3)
        for _ in range(6):
            optimizer.zero_grad()
            loss = loss_of(model)
            (loss * init if hand else scaler.scale(loss)).backward()
            scale = scaler.get_scale() if reads and not hand else init
            nn.utils.clip_grad_norm_(model.parameters(), limit(scale))
            if hand:
                in_place(grads(model.parameters()), init)
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()

    errors, warnings = watched(train)
    return "error" if "AMP401" in errors else "warning" if "AMP401" in warnings else ""


@pytest.mark.parametrize("hand", [True, False])
def test_a_limit_times_the_scale_is_none_of_scaled_gradients(hand):
    assert limited(lambda scale: 0.9 * scale, hand=hand, init=2.0**12) == ""
    assert limited(lambda scale: torch.tensor(0.9 * scale), hand=hand, init=2.0**12) == ""
    assert limited(lambda _: 1.0, hand=hand, init=2.0**12) == "error"
    assert limited(lambda _: 5.0, hand=hand, init=2.0**16) == "error"


def test_one_that_may_be_either_is_a_warning_where_the_scale_was_read():
    assert limited(lambda scale: 0.5 * scale, init=2.0**8) == "warning"
    assert limited(lambda scale: 0.5 * scale, init=2.0**8, hand=True) == "warning"
    assert limited(lambda _: 128.0, init=2.0**8, reads=False) == "error"
    assert limited(lambda _: 2000.0, reads=False) == "warning"


def test_an_infinite_limit_limits_nothing():
    assert limited(lambda _: float("inf"), reads=False) == ""


def two_losses(second):
    """Return a loop over a scaled loss and another one of the same parameters, whose backward `second` runs."""

    def train():
        model = Metric()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            (loss_of(model) * SCALE).backward()
            before = [one.clone() for one in grads(model.parameters())]
            second(model, 0.1 * model.body(torch.randn(8, 6)).square().mean())
            added.append(
                sum(float((a - b).norm()) for a, b in zip(grads(model.parameters()), before, strict=True))
            )
            in_place(grads(model.parameters()), SCALE)
            optimizer.step()

    added = []
    return train, added


def test_a_second_loss_that_is_divided_by_a_scale_it_never_had():
    plain, added = two_losses(lambda _, loss: loss.backward())
    errors, _ = watched(plain)
    assert set(errors) == {"AMP408"}
    assert "of another loss" in errors["AMP408"].message
    scaled, as_meant = two_losses(lambda _, loss: (loss * SCALE).backward())
    assert watched(scaled)[0] == {}
    assert as_meant[0] / added[0] == pytest.approx(SCALE, rel=1e-3)  # what is lost of the second loss


def test_a_second_loss_is_added_behind_the_division():
    def divides_first(model, loss):
        in_place(grads(model.parameters()), SCALE)
        loss.backward()
        for one in grads(model.parameters()):
            one.mul_(SCALE)

    assert "AMP408" not in watched(two_losses(divides_first)[0])[0]


class Allows(torch.amp.GradScaler):
    """Divides float16 gradients where they are, which torch refuses: what is below 2^-24 then is lost."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class OfMasters(torch.optim.Optimizer):
    """Steps FP32 copies of half parameters, from gradients that were divided before they are copied."""

    def __init__(self, parameters, lr):
        super().__init__(list(parameters), {"lr": lr})
        self.low = self.param_groups[0]["params"]
        self.masters = [nn.Parameter(one.detach().float()) for one in self.low]
        self.inner = torch.optim.Adam(self.masters, lr)

    @torch.no_grad()
    def step(self):
        for master, one in zip(self.masters, self.low, strict=True):
            master.grad = one.grad.float()
        self.inner.step()
        for master, one in zip(self.masters, self.low, strict=True):
            one.copy_(master)


@pytest.mark.parametrize("kind", [torch.optim.SGD, OfMasters])
@pytest.mark.parametrize(("size", "lost"), [(1.0, False), (1e-6, True)])
def test_float16_gradients_that_a_scaler_divides_in_place(size, lost, kind):
    zeros = []

    def train():
        model = nn.Linear(16, 8).half()
        optimizer, scaler = kind(model.parameters(), lr=1e-3), Allows("cuda", init_scale=SCALE)
        for _ in range(6):
            optimizer.zero_grad()
            loss = (model(torch.randn(32, 16).half()).float() - 1).square().mean() * size
            scaler.scale(loss).backward()
            before = model.weight.grad.clone()
            scaler.step(optimizer)
            zeros.append(bool((before.bool() & ~model.weight.grad.bool()).float().mean() > 0.15))
            scaler.update()

    errors, _ = watched(train)
    assert set(zeros) == {lost}
    assert set(errors) == ({"AMP201"} if lost else set())
    assert not lost or "keep the weights in FP32" in errors["AMP201"].message
    assert not lost or ".half()" in errors["AMP201"].fix[0]
