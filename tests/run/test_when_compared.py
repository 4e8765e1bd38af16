"""When a script's steps are compared with FP32, with what, and what is no part of them."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.diagnose.rules.updates import lost_updates
from ampcheck.observe.model.updates import update_loss
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
WANTED = ROWS.sum(1, keepdim=True)


def watched(loop, **schedule):
    session = Session(Schedule(**schedule), as_cuda=True)
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py")


def codes(report, severity="error"):
    return {one.code for one in report.findings if one.severity.value == severity}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def fit(model, x=ROWS):
    return F.mse_loss(model(x).float(), WANTED)


# -- an average that moves between steps


def with_average(gathers, steps=12, rate=0.002):
    """Return a loop that keeps an average of the weights in bf16, and the average; `gathers` what is rounded away."""
    model, teacher = net(), net().bfloat16()
    left = [torch.zeros_like(one, dtype=torch.float32) for one in teacher.parameters()]

    def move():
        for slow, fast, rest in zip(teacher.parameters(), model.parameters(), left, strict=True):
            now = slow.detach().float() + rest + rate * (fast.detach() - slow.detach().float())
            slow.data.copy_(now)
            if gathers:
                rest.copy_(now - slow.detach().float())

    def loop():
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                with torch.no_grad():
                    wanted = teacher(ROWS.bfloat16()).float()
                loss = fit(model) + 0.1 * F.mse_loss(model(ROWS).float(), wanted)
            loss.backward()
            optimizer.step()
            move()

    return loop, teacher


def test_an_average_that_gathers_what_is_rounded_away_is_no_error():
    """Its elements stand still between two steps, and move when enough has gathered."""
    loop, teacher = with_average(gathers=True)
    before = [one.detach().clone() for one in teacher.parameters()]
    report = watched(loop)
    moved = [bool((one != old).any()) for one, old in zip(teacher.parameters(), before, strict=True)]
    assert all(moved)
    assert not codes(report)


# -- optimizers that come later


def later(scale):
    """Return a loop whose second model and optimizer come after four steps; the first is fine."""

    def loop():
        model, head = net(), nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(10):
            if step == 4:
                model = head
                optimizer = torch.optim.SGD(model.parameters(), 0.01)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = fit(model) * (scale if step >= 4 else 1.0)
            (loss * 2.0**8).backward()
            for parameter in model.parameters():
                parameter.grad.div_(2.0**8)
            optimizer.step()

    return loop


def test_the_steps_of_a_later_optimizer_are_compared():
    assert not codes(watched(later(1.0)))
    assert watched(later(2.0**-34)).verdict.word is Health.UNSAFE


# -- a backward that knows the loss scale


class Limited(torch.autograd.Function):
    """Limits each element's gradient, after dividing by the loss scale."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad / ctx.scale).clamp(-0.001, 0.001) * ctx.scale, None


def limited(told):
    """Return a loop whose backward is told the loss scale, or nothing of it."""

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(ROWS)
            out = Limited.apply(out.float(), scaler.get_scale() if told else 1.0)
            scaler.scale(F.mse_loss(out, WANTED)).backward()
            scaler.step(optimizer)
            scaler.update()

    return loop


def limited_gradient(told):
    """Return the first step's gradient in FP32 with and without a loss scale, by plain torch."""
    grads = []
    for scale in (1.0, 2.0**10):
        model = net()
        out = Limited.apply(model(ROWS), scale if told else 1.0)
        (F.mse_loss(out, WANTED) * scale).backward()
        grads.append(torch.cat([one.grad.flatten() for one in model.parameters()]) / scale)
    return grads


def test_fp32_has_the_loss_scale_where_the_backward_is_told_it():
    alone, scaled = limited_gradient(told=True)
    assert torch.allclose(alone, scaled)
    assert not codes(watched(limited(told=True)))
    alone, scaled = limited_gradient(told=False)
    assert not torch.allclose(alone, scaled, rtol=0.3)
    assert watched(limited(told=False)).verdict.word is Health.UNSAFE


# -- backwards whose gradients nobody uses


def test_gradients_that_are_read_and_cleared_are_neither_unscaled_nor_added_up():
    """Squares of single rows' gradients, as elastic weight consolidation keeps them."""

    def loop():
        model = net()
        importance = [torch.zeros_like(one) for one in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for row in range(6):
            optimizer.zero_grad()
            F.mse_loss(model(ROWS[row : row + 1]), WANTED[row : row + 1]).backward()
            for kept, parameter in zip(importance, model.parameters(), strict=True):
                kept.add_(parameter.grad**2)
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = fit(model)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    assert not {"AMP408", "AMP411"} & (codes(report) | codes(report, "warning"))


def test_clipping_gradients_that_come_from_elsewhere_is_not_too_late():
    """Another process, or a thread, has computed them: no backward is seen."""

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.5)
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert "AMP402" not in codes(watched(loop)) | codes(watched(loop), "warning")


# -- one step's weights, another step's casts


@pytest.mark.parametrize("cached", [True, False])
def test_a_stale_cast_is_found_behind_a_backward_too(cached):
    """Sharpness-aware steps go up and compute again within one autocast region, which keeps the old casts."""

    def climb(model, by):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad.sign(), alpha=by)

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(8):
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=cached):
                optimizer.zero_grad()
                fit(model).backward()
                climb(model, 0.2)
                went = [one.grad.clone() for one in model.parameters()]
                optimizer.zero_grad()
                fit(model).backward()
                with torch.no_grad():
                    for parameter, grad in zip(model.parameters(), went, strict=True):
                        parameter.sub_(grad.sign(), alpha=0.2)
            optimizer.step()

    assert ("AMP419" in codes(watched(loop))) is cached


# -- weights that become infinite in a few elements


class Adagrad(torch.optim.Optimizer):
    """One of somebody's own, which keeps its sums in the weights' precision."""

    def __init__(self, parameters, eps):
        super().__init__(list(parameters), {"eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                seen = self.state[parameter].setdefault("sum", torch.zeros_like(parameter))
                seen.add_(grad * grad)
                parameter.sub_(0.01 * grad / (seen.sqrt() + group["eps"]))


def embeds(eps, steps=6):
    """Return a loop over a table in fp16 of which few rows are used: for the others Adagrad divides zero by `eps`."""
    torch.manual_seed(0)
    table = nn.Embedding(512, 4).half()

    def loop():
        optimizer = Adagrad(table.parameters(), eps)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = table(torch.arange(500)).float().square().mean() * 1000
            loss.backward()
            optimizer.step()

    return loop, table


@pytest.mark.parametrize(("eps", "finite"), [(1e-10, False), (1e-3, True)])
def test_a_weight_that_becomes_infinite_is_an_error_however_few_they_are(eps, finite):
    loop, table = embeds(eps)
    report = watched(loop)
    assert bool(table.weight.isfinite().all()) is finite
    assert (report.verdict.word is Health.UNSAFE) is not finite


@pytest.mark.parametrize("bad", [0, 3, 200])
def test_what_is_lost_of_an_update_is_counted_as_by_hand(bad):
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(300, generator=generator).masked_fill(torch.rand(300, generator=generator) < 0.2, 0.0)
    low = torch.where(wide.abs() < 0.3, torch.zeros(()), wide * 1.1)
    low[:bad] = torch.inf
    lost = update_loss("table", wide.double(), low.double())
    moved = [(a, b) for a, b in zip(wide.tolist(), low.tolist(), strict=True) if a != 0 or math.isinf(b)]
    assert lost.moved == len(moved)
    assert lost.infinite == lost.wrong == bad
    assert lost.stuck == sum(b == 0 for _, b in moved)
    report = replace(watched(later(1.0)), updates=(lost,))
    assert [one.name for one in lost_updates(report)] == (["table"] if bad else [])


# -- training without an optimizer


def by_hand(small):
    """Return a loop that asks for gradients and moves the weights by itself; what enters is `small`, and made large."""

    def loop():
        model = net()
        for _ in range(8):
            with torch.autocast("cuda", torch.float16):
                loss = fit(lambda x: model(x * small) / small)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.sub_(grad, alpha=1e-4 * small)

    return loop


@pytest.mark.parametrize(("small", "harmed"), [(1.0, False), (2.0**-23, True)])
def test_gradients_that_a_script_moves_weights_by_itself_with_are_compared(small, harmed):
    grads = []
    for dtype in (torch.float32, torch.float16):
        model = net()
        fit(lambda x: model((x * small).to(dtype).float()) / small).backward()  # noqa: B023
        grads.append(model[0].weight.grad)
    off = float((grads[1] - grads[0]).norm() / grads[0].norm())
    assert (off > 0.1) is harmed
    report = watched(by_hand(small))
    assert report.verdict.coverage.parameters == 4
    assert not report.verdict.coverage.unseen
    assert (report.verdict.word is Health.UNSAFE) is harmed


@pytest.mark.parametrize(("large", "harmed"), [(2.0**20, False), (2.0**40, True)])
def test_overflows_that_a_script_without_optimizer_skips_are_no_error_once_they_end(large, harmed):
    model, taken = net(), []

    def loop():
        scale = large
        for _ in range(16):
            with torch.autocast("cuda", torch.float16):
                loss = fit(model)
            grads = torch.autograd.grad(loss * scale, list(model.parameters()))
            if not all(bool(grad.isfinite().all()) for grad in grads):
                scale /= 2
                continue
            taken.append(scale)
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.sub_(grad, alpha=0.01 / scale)

    report = watched(loop)
    assert bool(taken) is not harmed
    assert (report.verdict.word is Health.UNSAFE) is harmed
    assert report.verdict.word is not Health.SAFE  # what divides the gradients was not seen


# -- training in half precision that begins later


@pytest.mark.parametrize("too_early", [True, False])
def test_steps_behind_a_warm_up_in_fp32_are_compared_once_their_scale_has_come_to_rest(too_early):
    def loop():
        model = net()
        for precision in (torch.float32, torch.float16):
            optimizer = torch.optim.SGD(model.parameters(), 1e-3)
            half = precision is torch.float16
            scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20, enabled=half)
            for step in range(60):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16, enabled=half):
                    loss = 30 * fit(model)
                scaler.scale(loss).backward()
                if half and not too_early:
                    scaler.unscale_(optimizer)
                for parameter in model.parameters():  # noise, as Langevin dynamics adds
                    seed = torch.Generator().manual_seed(step)
                    parameter.grad.add_(torch.randn(parameter.shape, generator=seed))
                scaler.step(optimizer)
                scaler.update()

    report = watched(loop)
    assert report.loop.skipped
    assert codes(report) == ({"AMP421"} if too_early else set())
    assert report.verdict.word is (Health.UNSAFE if too_early else Health.SAFE)


# -- gradients that torch.func gives, and a scaler


@pytest.mark.parametrize("limit", [0.5, 1e4])
def test_gradients_of_torch_func_that_a_scaler_divides_are_compared(limit):
    """Each example's gradient is shortened while it is still multiplied by the scale."""
    scale, norms = 2.0**12, []

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=scale)

        def of_one(parameters, x, y, by):
            with torch.autocast("cuda", torch.float16):
                out = torch.func.functional_call(model, parameters, (x[None],))
            return F.mse_loss(out.float(), y[None]) * by

        gradients = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0, None))
        for _ in range(4):
            held = {name: one.detach() for name, one in model.named_parameters()}
            found = gradients(held, ROWS, WANTED, scaler.scale(torch.ones(())))
            long = torch.stack([one.flatten(1).norm(dim=1) for one in found.values()]).norm(dim=0)
            norms.append(float(long.max()) / scale)
            for name, parameter in model.named_parameters():
                short = (limit * (1 if limit < 1 else scale) / long).clamp(max=1.0)
                parameter.grad = torch.einsum("b,b...->...", short, found[name]) / len(ROWS)
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    assert (limit < 1) is (max(norms) > limit)
    assert (report.verdict.word is Health.UNSAFE) is (limit < 1)
    assert (report.verdict.word is Health.SAFE) is (limit > 1)
