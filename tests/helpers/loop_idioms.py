"""The mistakes of training loops in the ways that people write loops: classes, closures, decorators, hooks, wrappers.

Each function trains a few steps, with its one thing wrong where `wrong` is true and without where it is not.
"""

import functools
import io
import itertools
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

import torch
from loop_scripts import data, half, net
from torch import nn
from torch.nn import functional as F  # as everybody calls it
from torch.optim import swa_utils


class Trainer:
    """A loop whose parts are methods, called by name through a list of hooks."""

    def __init__(self, hooks):
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda")
        self.hooks = hooks

    def call(self, name):
        for hook in self.hooks:
            getattr(hook, name, lambda _: None)(self)

    def fit(self):
        for self.batch in data():
            self.optimizer.zero_grad(set_to_none=True)
            with half():
                self.loss = F.cross_entropy(self.model(self.batch[0]), self.batch[1])
            self.scaler.scale(self.loss).backward()
            self.call("after_backward")
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.call("after_step")


class Clip:
    def __init__(self, unscales):
        self.unscales = unscales

    def after_backward(self, trainer):
        if self.unscales:
            trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_value_(trainer.model.parameters(), 0.5)


def clips_in_a_hook(wrong):
    Trainer([Clip(unscales=not wrong)]).fit()


def clips_by_foreach(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if not wrong:
            scaler.unscale_(optimizer)
        grads = [p.grad for p in model.parameters()]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, torch.clamp(1.0 / (total + 1e-6), max=1.0))
        scaler.step(optimizer)
        scaler.update()


class Warmed:
    """An optimizer with its schedule, as translation models have it."""

    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler, self.steps = optimizer, scaler, 0

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step_and_update_lr(self, through_scaler):
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * min(self.steps**-0.5, self.steps * 0.1)
        if through_scaler:
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()


def steps_a_wrapped_optimizer(wrong):
    model, scaler = net(), torch.amp.GradScaler("cuda")
    optimizer = Warmed(torch.optim.Adam(model.parameters(), betas=(0.9, 0.98)), scaler)
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        scaler.scale(loss).backward()
        optimizer.step_and_update_lr(not wrong)
        if not wrong:
            scaler.update()


def updates_in_a_partial(wrong):
    model, scaler = net(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    ends = [functools.partial(scaler.step, optimizer), scaler.update, *([scaler.update] if wrong else [])]
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        for end in ends:
            end()


def updates_every_part(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data(8), start=1):
        with half():
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        if i % 4 == 0:
            scaler.step(optimizer)
            optimizer.zero_grad()
        if wrong or i % 4 == 0:
            scaler.update()


def decorated_step(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")

    @torch.autocast("cuda", dtype=torch.float16)
    def loss_of(x, y):
        loss = F.cross_entropy(model(x), y)
        if wrong:
            scaler.scale(loss).backward()
        return loss

    for x, y in data():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        if not wrong:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def managed_by_a_stack(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with ExitStack() as stack:
            stack.enter_context(half())
            loss = F.cross_entropy(model(x), y)
            if not wrong:
                stack.close()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def parts_of_a_batch(wrong):
    """Divides by multiplying with the share of each part; parts are of different size."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        for inputs, targets in zip(x.split(6), y.split(6), strict=True):
            share = 1.0 if wrong else len(inputs) / len(x)
            with half():
                loss = F.cross_entropy(model(inputs), targets)
                weighted = loss * share if share != 1.0 else loss
            scaler.scale(weighted).backward()
        scaler.step(optimizer)
        scaler.update()


def sums_over_parts(wrong):
    """A sum needs no share: what is divided by the whole batch is right as it is."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    criterion = nn.CrossEntropyLoss(reduction="mean" if wrong else "sum")
    for x, y in data():
        optimizer.zero_grad()
        for inputs, targets in zip(x.chunk(2), y.chunk(2), strict=True):
            with half():
                loss = criterion(model(inputs), targets)
            scaler.scale(loss if wrong else loss / len(x)).backward()
        scaler.step(optimizer)
        scaler.update()


def unscales_every_part(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    batches = data(8)
    while group := list(itertools.islice(batches, 2)):
        optimizer.zero_grad()
        for at, (x, y) in enumerate(group):
            with half():
                loss = F.cross_entropy(model(x), y).div(len(group))
            scaler.scale(loss).backward()
            if wrong or at == len(group) - 1:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def without_sync(wrong):
    """Parallel over one process; the parts but the last do not synchronise."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(net())
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        for i, (x, y) in enumerate(data(8), start=1):
            last = i % 2 == 0
            with nullcontext() if last else model.no_sync():
                with half():
                    loss = F.cross_entropy(model(x), y) / 2
                scaler.scale(loss).backward()
            if wrong and last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if last:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    finally:
        torch.distributed.destroy_process_group()


def adversarial(wrong, scalers=1):
    """The discriminator steps and updates, then the generator does: each backward at the scale of its step."""
    generator, critic = net(), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    first = torch.optim.Adam(generator.parameters(), lr=2e-4)
    second = torch.optim.Adam(critic.parameters(), lr=2e-4)
    made = [torch.amp.GradScaler("cuda") for _ in range(scalers)]
    bce = F.binary_cross_entropy_with_logits
    for x, _ in data():
        with half():
            fake = generator(x)
            real = critic(torch.randn(16, 4).cuda())
            loss = bce(real, torch.ones_like(real)) + bce(critic(fake.detach()), torch.zeros_like(real))
        second.zero_grad()
        made[0].scale(loss).backward()
        if wrong:
            second.step()
        else:
            made[0].step(second)
            made[0].update()
        with half():
            judged = critic(fake)
            loss = bce(judged, torch.ones_like(judged))
        first.zero_grad()
        made[-1].scale(loss).backward()
        made[-1].step(first)
        made[-1].update()


def lbfgs(wrong):
    model, scaler = net(), torch.amp.GradScaler("cuda", enabled=wrong)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    dtype = torch.float16 if wrong else torch.bfloat16
    for x, y in data(2):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        optimizer.step(closure)


def scaled_by_hand(wrong):
    """A constant scale: multiplied, and divided away again before the step."""
    model = net()
    optimizer, scale = torch.optim.SGD(model.parameters(), lr=0.1), 1.0 if wrong else 1024.0
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        (loss if wrong else loss * scale).backward()
        if not wrong:
            for p in model.parameters():
                p.grad.div_(scale)
        optimizer.step()


def scaled_in_vain(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaled = scaler.scale(loss)
        (loss if wrong else scaled).backward()
        scaler.step(optimizer)
        scaler.update()


def two_losses(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            out = model(x)
            first, second = F.cross_entropy(out, y), 0.1 * out.float().square().mean()
        if wrong:
            scaler.scale(first).backward(retain_graph=True)
            second.backward()
        else:
            torch.autograd.backward([scaler.scale(first), scaler.scale(second)])
        scaler.step(optimizer)
        scaler.update()


def gradients_as_values(wrong):
    model = net()
    parameters = list(model.parameters())
    optimizer, scaler = torch.optim.SGD(parameters, lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        with half():
            loss = F.cross_entropy(model(x), y)
        given = torch.autograd.grad(loss if wrong else scaler.scale(loss), parameters)
        for p, grad in zip(parameters, given, strict=True):
            p.grad = grad
        scaler.step(optimizer)
        scaler.update()


def scheduled_by_a_closure(wrong):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)

    def step():
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if wrong or before <= scaler.get_scale():
            schedule.step()

    for x, y in data(16):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        step()


class Saves:
    def __init__(self, scaler_too):
        self.scaler_too = scaler_too

    def after_step(self, trainer):
        held = {"net": trainer.model.state_dict(), "optim": trainer.optimizer.state_dict()}
        torch.save(held, io.BytesIO())
        if self.scaler_too:
            torch.save(trainer.scaler.state_dict(), io.BytesIO())


def saves_in_a_hook(wrong):
    Trainer([Saves(scaler_too=not wrong)]).fit()


def asks_for_overflow(wrong):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if wrong:
            skipped = hasattr(scaler, "found_inf") and scaler.found_inf
        else:
            skipped = any(v.item() for v in scaler._found_inf_per_device(optimizer).values())
        if not skipped:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


class Evaluates:
    def __init__(self, region):
        self.region = region

    @torch.inference_mode()
    def after_step(self, trainer):
        trainer.model.eval()
        with self.region():
            F.cross_entropy(trainer.model(trainer.batch[0]), trainer.batch[1])
        trainer.model.train()


def evaluates_in_a_hook(wrong):
    Trainer([Evaluates(nullcontext if wrong else half)]).fit()


def backbone_in_half(wrong):
    """What is frozen may be held in half precision; what is trained may not."""
    torch.manual_seed(0)
    backbone, head = nn.Linear(8, 16).half().requires_grad_(wrong), nn.Linear(16, 4)
    trained = [p for p in [*backbone.parameters(), *head.parameters()] if p.requires_grad]
    optimizer, scaler = torch.optim.SGD(trained, lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(head(backbone(x).relu()), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def only_the_loss_inside(wrong):
    """A loss of FP32 logits outside the region is as it should be; a model outside is not."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with nullcontext() if wrong else half():
            out = model(x)
        with half() if wrong else nullcontext():
            loss = F.cross_entropy(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def scaler_by_default(wrong):
    amp = functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16)
    scaler = torch.amp.GradScaler("cuda", enabled=wrong or amp.keywords["dtype"] is torch.float16)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        optimizer.zero_grad()
        with amp():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def averages(wrong):
    """A running average of the weights is brought to its statistics outside of autocast; nothing is wrong with that."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    average = swa_utils.AveragedModel(model)
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if wrong:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        average.update_parameters(model)
    swa_utils.update_bn([x for x, _ in data()], average)


def scaler_of_every_step(wrong):
    """A scaler that is made anew begins at the first scale again: it never learns."""
    model = net()
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        scaler = torch.amp.GradScaler("cuda") if wrong else kept
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


class OwnUnscaling(torch.amp.GradScaler):
    """Unscales gradients with code of its own."""

    wrong = False

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        held = [grad for grad in held if grad.ndim > 1 or not self.wrong]
        torch._amp_foreach_non_finite_check_and_unscale_(held, found_inf, inv_scale)
        return {found_inf.device: found_inf}


def scaler_of_its_own(wrong):
    """A scaler that divides what it likes."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), OwnUnscaling("cuda")
    scaler.wrong = wrong
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def folds(wrong):
    """Where all is made anew, so is the scaler; where the optimizer stays, it is not."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for fold in range(3):
        if fold and not wrong:
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, y in data(2):
            optimizer.zero_grad()
            with half():
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def entered_by_callbacks():
    """A region that one method enters and another leaves."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        region = half()
        region.__enter__()
        out = model(x)
        loss = F.cross_entropy(out, y)
        region.__exit__(None, None, None)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def skips_by_itself():
    """A batch whose loss is no number is left out; a step whose gradients are none is only told to the scaler."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data(6)):
        with half():
            loss = F.cross_entropy(model(x * torch.nan if i == 2 else x), y)
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm) and i != 4:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def steps_in_the_backward():
    """Each parameter is stepped as soon as its gradient is there."""
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in data():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()


def learns_to_learn():
    """An inner loop takes gradients as values, several times; the outer one is scaled."""
    model = net()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
    for x, y in data():
        weights = dict(model.named_parameters())
        for _ in range(2):
            inner = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
            taken = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), taken, strict=True)}
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def sharpens():
    """A step up the slope, and one down from there: two backwards of two losses, and weights that move between."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        optimizer.zero_grad()


def distils():
    """A teacher without gradients in the same region, its weights an average; a critic that rests every other step."""
    student, teacher, critic = net(), net(), nn.Linear(4, 1)
    first = torch.optim.AdamW(student.parameters(), lr=1e-3)
    second = torch.optim.AdamW(critic.parameters(), lr=1e-3)
    scaler, other = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for i, (x, _) in enumerate(data(6)):
        with half():
            with torch.no_grad():
                wanted = teacher(x)
            critic.requires_grad_(False)  # as it is written
            out = student(x)
            loss = F.mse_loss(out.float(), wanted.float()) - critic(out).float().mean()
        first.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(first)
        for p in student.parameters():
            norm = p.grad.data.norm(2)
            p.grad.data.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        scaler.step(first)
        scaler.update()
        if i % 2 == 0:
            critic.requires_grad_(True)
            with half():
                loss = F.softplus(critic(out.detach())).mean() + F.softplus(-critic(wanted)).mean()
            second.zero_grad()
            other.scale(loss).backward()
            other.step(second)
            other.update()
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), student.parameters(), strict=True):
                a.mul_(0.9).add_(b, alpha=0.1)


def sets_the_scale():
    """A scale that the loop chooses itself needs no check before it is set."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        with half():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i == 1:
            scaler.update(2.0**10)


@dataclass(frozen=True)
class Idiom:
    """A loop, what must be said of it where it is wrong, and at which line."""

    train: Callable[[bool], None]
    code: str
    line: str


def logs_a_part(wrong):
    """Log the norm of the first micro-batch's gradients, as they are or divided by the scale."""
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data(8)):
        with half():
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2 == 0:
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            LOG.append(float(norm if wrong else norm / scaler.get_scale()))
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def penalises_slopes(wrong):
    """Add a gradient penalty to the loss, of the scaled score's slope or of the true one."""
    model = net()
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-4), torch.amp.GradScaler("cuda", 16.0)
    for x, _ in data(4):
        x.requires_grad_()
        with half():
            score = model(x).sum()
        slope = torch.autograd.grad(scaler.scale(score), x, create_graph=True)[0]
        slope = slope if wrong else slope / scaler.get_scale()
        scaler.scale(score.float().square() * 1e-3 + (slope.norm(2, dim=1) - 1).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


LOG = []

IDIOMS = [
    Idiom(clips_in_a_hook, "AMP401", "clip_grad_value_"),
    Idiom(clips_by_foreach, "AMP401", "_foreach_mul_"),
    Idiom(steps_a_wrapped_optimizer, "AMP403", "self.optimizer.step()"),
    Idiom(updates_in_a_partial, "AMP405", "end()"),
    Idiom(updates_every_part, "AMP405", "scaler.update()"),
    Idiom(decorated_step, "AMP407", ".backward()"),
    Idiom(managed_by_a_stack, "AMP407", ".backward()"),
    Idiom(parts_of_a_batch, "AMP411", ".backward()"),
    Idiom(sums_over_parts, "AMP411", ".backward()"),
    Idiom(unscales_every_part, "AMP404", "unscale_"),
    Idiom(without_sync, "AMP401", "clip_grad_norm_"),
    Idiom(adversarial, "AMP403", "second.step()"),
    Idiom(functools.partial(adversarial, scalers=2), "AMP403", "second.step()"),
    Idiom(lbfgs, "AMP403", "optimizer.step(closure)"),
    Idiom(scaled_by_hand, "AMP408", ".backward()"),
    Idiom(scaled_in_vain, "AMP408", ".backward()"),
    Idiom(two_losses, "AMP408", "second.backward()"),
    Idiom(gradients_as_values, "AMP408", "autograd.grad"),
    Idiom(scheduled_by_a_closure, "AMP412", "schedule.step()"),
    Idiom(saves_in_a_hook, "AMP413", "torch.save(held"),
    Idiom(asks_for_overflow, "AMP414", "found_inf"),
    Idiom(evaluates_in_a_hook, "AMP409", "trainer.model("),
    Idiom(backbone_in_half, "AMP302", "backbone(x)"),
    Idiom(only_the_loss_inside, "AMP406", "model(x)"),
    Idiom(scaler_by_default, "AMP205", "GradScaler("),
    Idiom(averages, "AMP403", "optimizer.step()"),
    Idiom(scaler_of_every_step, "AMP417", "GradScaler("),
    Idiom(folds, "AMP417", "GradScaler("),
    Idiom(logs_a_part, "AMP416", "p.grad.norm()"),
    Idiom(penalises_slopes, "AMP416", "autograd.grad"),
]

#: Loops of which nothing is to be said.
CLEAN = [
    entered_by_callbacks,
    skips_by_itself,
    steps_in_the_backward,
    learns_to_learn,
    sharpens,
    distils,
    sets_the_scale,
]
