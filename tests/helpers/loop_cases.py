"""Training loops with one thing wrong, beside the same loop as it should be, for every rule of loops."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from loop_idioms import scaler_of_every_step, scaler_of_its_own
from loop_scripts import (
    data,
    gradient_penalty,
    half,
    loss_fn,
    net,
    trains,
    unscaled_while_growing,
    updated_between,
)
from torch import nn
from torch.nn.utils import clip_grad_norm_


@dataclass(frozen=True)
class Case:
    """A loop that a rule must speak of, and the corrected one of which it must not."""

    wrong: Callable[[object], None]
    right: Callable[[object], None]
    line: str  #: part of the line that is named
    fix: str  #: part of the corrected lines


def part(**given):
    """Return the tutorial's loop with changes; it is handed a path."""
    return lambda path: trains(**{name: path if value is part else value for name, value in given.items()})


def logs(unscaled, measure):
    """Train, with a look at the gradients."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        measure(model.parameters())
        scaler.step(optimizer)
        scaler.update()


class ClippingScaler(torch.amp.GradScaler):
    """Limits each gradient to a part of its parameter's norm, before torch's step unscales it, or after that."""

    unscales = True

    @torch.no_grad()
    def step(self, optimizer):
        if self.unscales:
            self.unscale_(optimizer)
        for parameter in optimizer.param_groups[0]["params"]:
            most = 0.1 * parameter.norm() / parameter.grad.norm().clamp_min(1e-6)
            parameter.grad.mul_(most.clamp(max=1.0))
        return super().step(optimizer)


class ClippingTooEarly(ClippingScaler):
    unscales = False


def clips_itself(kind):
    """Train with a scaler that clips."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), kind("cuda", init_scale=2.0**12)
    for x, y in data(6):
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def norms(parameters):
    return sum(p.grad.data.norm(2) ** 2 for p in parameters) ** 0.5


def limits(parameters):
    for p in parameters:
        p.grad.data.clamp_(-1, 1)


def accumulates(divided):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data(8)):
        with half():
            loss = loss_fn(model(x), y)
            loss = loss / 4 if divided else loss
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def each_its_scaler(updated):
    """Two models, each with a scaler of its own; the second is updated, or not."""
    pairs = []
    for _ in range(2):
        model = net()
        pairs.append((model, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")))
    (a, first, scaler_a), (b, second, scaler_b) = pairs
    for x, y in data():
        first.zero_grad()
        with half():
            loss = loss_fn(a(x), y)
        scaler_a.scale(loss).backward()
        scaler_a.step(first)
        scaler_a.update()
        second.zero_grad()
        with half():
            loss = loss_fn(b(x), y)
        scaler_b.scale(loss).backward()
        scaler_b.step(second)
        if updated:
            scaler_b.update()


def clears_late(late):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if late:
            optimizer.zero_grad()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def unscales_when_all_is_there(_):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data(2):
        optimizer.zero_grad()
        for _ in range(2):
            with half():
                loss = loss_fn(model(x), y) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def two(clip_second_unscaled=True, second_through_scaler=True):
    a, b = net(16), net(32)
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in data():
        first.zero_grad()
        second.zero_grad()
        with half():
            loss = loss_fn(a(x) + b(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        clip_grad_norm_(a.parameters(), 1.0)
        if clip_second_unscaled:
            scaler.unscale_(second)
        clip_grad_norm_(b.parameters(), 2.0)
        scaler.step(first)
        if second_through_scaler:
            scaler.step(second)
        else:
            second.step()
        scaler.update()


def in_bf16(enabled):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=enabled)
    for x, y in data():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def stored(halved, scaled=True):
    model = net()
    model = model.half() if halved else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def fp16_alone(scaled):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def in_one_region(cleared):
    """Train within one region of autocast, whose casts are cleared after each step or not."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with half():
        for x, y in data():
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
            if cleared:
                torch.clear_autocast_cache()


def clears(every_step):
    """Train without clearing what scaler.step leaves, or clear it by hand; a second model reaches it in passing."""
    model, other = net(), net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data(6):
        with half():
            loss = loss_fn(model(x) + other(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for p in model.parameters() if every_step else ():
            p.grad = None


def schedules_early(early):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        if early:
            scheduler.step()
        scaler.step(optimizer)
        scaler.update()
        if not early:
            scheduler.step()


def schedules(aware):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for x, y in data(9):
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if not aware or scaler.get_scale() >= scale:
            scheduler.step()


class ClipsAfterIt(torch.amp.GradScaler):
    """Clips what its optimizer has been stepped with already."""

    late = True

    def clip(self, optimizer):
        clip_grad_norm_(optimizer.param_groups[0]["params"], self.get_scale())

    def step(self, optimizer, *args, **kwargs):
        if not self.late:
            self.clip(optimizer)
        out = super().step(optimizer, *args, **kwargs)
        if self.late:
            self.clip(optimizer)
        return out


def clips_in_its_scaler(late):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), ClipsAfterIt("cuda", init_scale=2.0**8)
    scaler.late = late
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def scalers_of_epochs(spoilt):
    """Make a scaler for each epoch, of which the last one's gradients may be infinite at every scale."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for x, y in data(40 if epoch < 2 else 10):
            optimizer.zero_grad()
            with half():
                loss = loss_fn(model(x), y)
            scaler.scale(loss * (float("inf") if spoilt and epoch == 2 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()


def shares_a_trunk(scalers):
    trunk, heads = nn.Linear(8, 16), [nn.Linear(16, 4), nn.Linear(16, 4)]
    parameters = [one for module in (trunk, *heads) for one in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    first = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    second = torch.amp.GradScaler("cuda", init_scale=2.0**6) if scalers > 1 else first
    for x, y in data():
        optimizer.zero_grad()
        with half():
            held = torch.tanh(trunk(x))
            losses = [loss_fn(head(held), y) for head in heads]
        first.scale(losses[0]).backward(retain_graph=True)
        second.scale(losses[1]).backward()
        first.step(optimizer)
        first.update()
        if scalers > 1:
            second.update(2.0**6)


def goes_by_a_sum(half_sum):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for _ in range(4):
        total = torch.zeros((), dtype=torch.float16 if half_sum else torch.float32)
        for x, y in data(2):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total += 1e6 * loss.detach()
        scheduler.step(total.item())


def validates(inside):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        model.train()
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=inside):
            model(x)


def saves(path, with_scaler):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    held = {"optimizer": optimizer.state_dict()} | ({"scaler": scaler.state_dict()} if with_scaler else {})
    torch.save(held, path)


def looks(private):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        _ = getattr(scaler, "_found_inf", 0) if private else scaler.get_scale() < scale


class Rooted(nn.Module):
    """Adds the root of a zero: its gradient is no number in any precision, unless it is moved away."""

    def __init__(self, eps):
        super().__init__()
        self.inner, self.eps = nn.Linear(8, 4), eps

    def forward(self, x):
        out = self.inner(x)
        return out + ((out - out) ** 2 + self.eps).sqrt()


def collapses(eps):
    torch.manual_seed(0)
    model = Rooted(eps)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data(24):
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


RIGHT = part(unscale=0)

#: By the rule that must speak of the wrong loop, and of it alone.
CASES = {
    "AMP206": Case(lambda _: collapses(0.0), lambda _: collapses(0.1), "** 2 + self.eps", ""),
    "AMP205": Case(lambda _: in_bf16(True), lambda _: in_bf16(False), "GradScaler(", "enabled=False"),
    "AMP302": Case(lambda _: stored(True), lambda _: stored(False), "model(x)", "without .half()"),
    "AMP401": Case(part(clip="before"), part(), "clip_grad_norm_", "scaler.unscale_(optimizer)  # before"),
    "AMP401 by hand": Case(
        lambda _: logs(False, limits), lambda _: logs(True, limits), "clamp_(", "scaler.unscale_(optimizer)"
    ),
    "AMP401 second optimizer": Case(
        lambda _: two(clip_second_unscaled=False),
        lambda _: two(),
        "clip_grad_norm_(b.parameters(), 2.0)",
        "scaler.unscale_(second)",
    ),
    "AMP402": Case(part(clip="after", unscale=0), part(), "clip_grad_norm_", "scaler.step(optimizer)"),
    "AMP403": Case(part(direct=True, unscale=0), RIGHT, "optimizer.step()", "scaler.step(optimizer)"),
    "AMP403 alone": Case(
        part(direct=True, scaler_steps=False, unscale=0, update=0), RIGHT, "optimizer.step()", "scaler.step("
    ),
    "AMP403 second optimizer": Case(
        lambda _: two(second_through_scaler=False), lambda _: two(), "second.step()", "scaler.step("
    ),
    "AMP404": Case(part(unscale=2), part(), "scaler.unscale_", "scaler.unscale_(optimizer)"),
    "AMP404 while growing": Case(
        lambda _: unscaled_while_growing(),
        unscales_when_all_is_there,
        "scaler.unscale_",
        "if last_micro_batch:",
    ),
    "AMP404 on what a step leaves": Case(
        lambda _: clears(False),
        lambda _: clears(True),
        ".backward()",
        "optimizer.zero_grad()  # after every step",
    ),
    "AMP405 unscaled": Case(part(update=0), part(), "scaler.step(optimizer)", "scaler.update()"),
    "AMP405": Case(part(update=0, unscale=0), RIGHT, "scaler.step(optimizer)", "scaler.update()"),
    "AMP405 doubled": Case(part(update=2), part(), "scaler.update()", "scaler.update()"),
    "AMP405 between": Case(
        lambda _: updated_between(), lambda _: two(), "scaler.update()", "scaler.update()"
    ),
    "AMP405 of the second scaler": Case(
        lambda _: each_its_scaler(False),
        lambda _: each_its_scaler(True),
        "scaler_b.step(second)",
        "scaler_b.update()",
    ),
    "AMP406": Case(part(forward_inside=False), part(), "model(x)", "with region():"),
    "AMP406 no region": Case(
        part(region=lambda: torch.autocast("cuda", enabled=False)), part(), "model(x)", "with "
    ),
    "AMP407": Case(part(backward_inside=True), part(), ".backward()", ".backward()  # outside"),
    "AMP408": Case(part(scaled=False), part(), ".backward()", "scaler.scale(loss).backward()"),
    "AMP408 switched off": Case(
        lambda _: fp16_alone(False),
        lambda _: fp16_alone(True),
        "GradScaler(",
        "enabled where autocast is float16",
    ),
    "AMP409": Case(lambda _: validates(False), lambda _: validates(True), "model(x)", "model(x)"),
    "AMP411": Case(
        lambda _: accumulates(False), lambda _: accumulates(True), ".backward()", "loss = loss / 4"
    ),
    "AMP412": Case(
        lambda _: schedules(False), lambda _: schedules(True), "scheduler.step()", "get_scale() >= scale"
    ),
    "AMP412 before the step": Case(
        lambda _: schedules_early(True),
        lambda _: schedules_early(False),
        "scheduler.step()",
        "scaler.update()",
    ),
    "AMP422": Case(
        lambda _: goes_by_a_sum(half_sum=True),
        lambda _: goes_by_a_sum(half_sum=False),
        "scheduler.step(total",
        "loss.float()",
    ),
    "AMP413": Case(lambda p: saves(p, False), lambda p: saves(p, True), "torch.save(", "scaler.state_dict()"),
    "AMP414": Case(lambda _: looks(True), lambda _: looks(False), "_found_inf", "scaler.get_scale() < scale"),
    "AMP416": Case(
        lambda _: logs(False, norms),
        lambda _: logs(True, norms),
        "norm(2)",
        "scaler.unscale_(optimizer)  # before",
    ),
    "AMP416 within a loss": Case(
        lambda _: gradient_penalty(divides=False),
        lambda _: gradient_penalty(),
        "torch.autograd.grad(",
        "/ scaler.get_scale()",
    ),
    "AMP417": Case(
        lambda _: scaler_of_every_step(wrong=True),
        lambda _: scaler_of_every_step(wrong=False),
        "GradScaler(",
        "once, where the optimizer is made",
    ),
    "AMP418": Case(
        lambda _: scaler_of_its_own(wrong=True),
        lambda _: scaler_of_its_own(wrong=False),
        "def _unscale_grads_",
        "without _unscale_grads_",
    ),
    "AMP402 in a scaler": Case(
        lambda _: clips_in_its_scaler(late=True),
        lambda _: clips_in_its_scaler(late=False),
        "clip_grad_norm_(",
        "scaler.step(optimizer)",
    ),
    "AMP418 two scalers": Case(
        lambda _: shares_a_trunk(scalers=2),
        lambda _: shares_a_trunk(scalers=1),
        "second.scale(",
        "one scaler for losses that share weights",
    ),
    "AMP419": Case(
        lambda _: in_one_region(cleared=False),
        lambda _: in_one_region(cleared=True),
        "with half():",
        "inside of the loop",
    ),
    "AMP420": Case(
        lambda _: clears_late(True),
        lambda _: clears_late(False),
        "optimizer.zero_grad()",
        "scaler.step(optimizer)",
    ),
    "AMP421": Case(
        lambda _: clips_itself(ClippingTooEarly),
        lambda _: clips_itself(ClippingScaler),
        "parameter.grad.mul_(",
        "scaler.unscale_(optimizer)",
    ),
}
