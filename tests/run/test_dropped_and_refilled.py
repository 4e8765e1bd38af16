"""Steps that a script drops, weights that it fills from half precision, and ways that it takes by half's numbers."""

import threading

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROWS = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
WANTED = ROWS.sum(1, keepdim=True)


def watched(loop):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def errors(report):
    return {one.code for one in report.findings if one.severity.value == "error"}


# -- a scale by hand that comes down slowly


@pytest.mark.parametrize(("patience", "wasted"), [(4, True), (1, False)])
def test_a_scale_by_hand_that_skips_more_steps_than_are_taken_is_an_error(patience, wasted):
    taken = []

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scale, left = 2.0**32, patience
        for _ in range(90):
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(ROWS).float(), WANTED)
            (loss * scale).backward()
            taken.append(all(bool(one.grad.isfinite().all()) for one in model.parameters()))
            if taken[-1]:
                for one in model.parameters():
                    one.grad.div_(scale)
                optimizer.step()
            else:
                left -= 1
                if not left:
                    scale, left = scale / 2.0, patience
            optimizer.zero_grad()

    report = watched(loop)
    skips = taken.count(False)
    assert (skips > taken.count(True)) is wasted
    assert ("AMP206" in errors(report)) is wasted
    assert sum(event.skipped for event in report.loop.scales) == skips
    assert (report.verdict.word is Health.SAFE) is not wasted


# -- FP32 weights that are filled from half precision before each step


def with_masters(refills, rate):
    low, masters = [], []

    def loop():
        model = net().half()
        masters[:] = [one.detach().float().requires_grad_() for one in model.parameters()]
        low[:] = [one.detach().clone() for one in model.parameters()]
        optimizer = torch.optim.SGD(masters, rate)
        for _ in range(6):
            if refills:
                for master, one in zip(masters, model.parameters(), strict=True):
                    master.data.copy_(one.data)
            model.zero_grad()
            loss = F.mse_loss(model(ROWS.half()).float(), WANTED)
            (loss * 64.0).backward()
            for master, one in zip(masters, model.parameters(), strict=True):
                master.grad = one.grad.float() / 64.0
            optimizer.step()
            for master, one in zip(masters, model.parameters(), strict=True):
                one.data.copy_(master.data)
        low[:] = [
            bool(torch.equal(was, one.detach())) for was, one in zip(low, model.parameters(), strict=True)
        ]

    return loop, low


@pytest.mark.parametrize(
    ("refills", "rate", "lost"), [(True, 1e-5, True), (True, 0.1, False), (False, 1e-5, False)]
)
def test_fp32_weights_that_are_filled_from_half_precision_lose_their_updates(refills, rate, lost):
    loop, _ = with_masters(refills, rate)
    report = watched(loop)
    assert ("AMP504" in errors(report)) is lost
    if lost:
        assert report.verdict.word is Health.UNSAFE
        # half a unit in the last place of most of these weights is far more than such a step
        assert float(net()[0].weight.detach().abs().median()) * 2.0**-12 > 4 * rate


class Ascends:
    """Sharpness-aware steps: up, and from where it was before down again."""

    def __init__(self, weights, dtype, rate):
        self.weights, self.dtype = list(weights), dtype
        self.steps, self.kept = torch.optim.Adam(self.weights, rate), {}

    @torch.no_grad()
    def up(self):
        for one in self.weights:
            self.kept[one] = one.detach().to(self.dtype, copy=True)
            one.add_(one.grad, alpha=0.01)

    @torch.no_grad()
    def down(self):
        for one in self.weights:
            one.copy_(self.kept.pop(one))
        self.steps.step()


@pytest.mark.parametrize(
    ("dtype", "rate", "lost"),
    [(torch.float16, 1e-5, True), (torch.float32, 1e-5, False), (torch.float16, 0.1, False)],
)
def test_fp32_weights_that_are_kept_in_half_precision_within_a_step_lose_the_one_before(dtype, rate, lost):
    model = net()

    def loop():
        ascends = Ascends(model.parameters(), dtype, rate)
        for _ in range(6):
            for move in (ascends.up, ascends.down):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = F.mse_loss(model(ROWS), WANTED)
                ascends.steps.zero_grad()
                loss.backward()
                move()

    report = watched(loop)
    found = [one for one in report.findings if one.code == "AMP504"]
    assert bool(found) is lost
    for one in found:
        assert one.origin.line == line_of(Ascends.down, "one.copy_")
        assert "is held in FP32, and it is filled from half precision before the next step" in one.message


# -- a way that the script takes by a number in half precision


@pytest.mark.parametrize("size", [1e-5, 1.0])
def test_a_comparison_that_comes_out_otherwise_is_never_safe(size):
    ways = []

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(ROWS).float(), WANTED)
                first = model[0](ROWS).square().mean().half() * size
                ways.append(bool((first * first).sum() > 0))
            if ways[-1]:
                loss = loss * 1.0001
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    assert all(ways) is (size == 1.0)
    gaps = report.verdict.coverage.gaps
    assert any("comes out otherwise than in FP32" in gap for gap in gaps) is not all(ways)
    assert (report.verdict.word is Health.SAFE) is all(ways)
    # The number is zero in float16 in each step, and is not in FP32.
    assert errors(report) == (set() if all(ways) else {"AMP510"})


# -- a normaliser without parameters whose state becomes infinite before it is called first


class Scaled(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("square", torch.ones(1, dtype=dtype))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf], dtype=dtype))

    @torch.no_grad()
    def update(self, values):
        self.square.mul_(0.9).add_(0.1 * (values.to(self.square.dtype) ** 2).mean())

    def forward(self, values):
        return values / self.square.sqrt() + self.mask[:1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_state_that_is_infinite_and_written_is_no_mask(dtype):
    def loop():
        model, scaled = net(), Scaled(dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
        for _ in range(6):
            scaled.update(WANTED * 500.0)
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(ROWS).float(), scaled(WANTED * 500.0).float())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    half = dtype is torch.float16
    assert (float((WANTED * 500.0).square().max()) > torch.finfo(dtype).max) is half
    assert (report.verdict.word is Health.SAFE) is not half, report.verdict.sentence
    assert "mask" not in report.verdict.sentence


# -- inner gradients of a scaled loss, which are divided by a number that was read before


@pytest.mark.parametrize("divides", [True, False])
def test_inner_gradients_that_are_multiplied_by_one_over_the_scale_are_fp32s(divides):
    def loop():
        model = net()
        held = dict(model.named_parameters())
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for _ in range(5):
            optimizer.zero_grad()
            by = 1.0 / scaler.get_scale() if divides else 1.0
            with torch.autocast("cuda", torch.float16):
                inner = F.mse_loss(model(ROWS).float(), WANTED)
            found = torch.autograd.grad(scaler.scale(inner), list(held.values()), create_graph=True)
            fast = {name: one - 0.01 * (g * by) for (name, one), g in zip(held.items(), found, strict=True)}
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(torch.func.functional_call(model, fast, (ROWS,)).float(), WANTED)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    assert (report.verdict.word is Health.SAFE) is divides, report.verdict.sentence


# -- threads that scale, and differentiate, at the same time


def test_threads_that_scale_their_losses_at_the_same_time_are_safe():
    def loop():
        model = net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=20)
        found = {}

        def shard(at):
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(ROWS[at::2]).float(), WANTED[at::2])
            found[at] = torch.autograd.grad(scaler.scale(loss), parameters)

        for _ in range(60):
            threads = [threading.Thread(target=shard, args=(at,)) for at in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for one, a, b in zip(parameters, found[0], found[1], strict=True):
                one.grad = (a + b) / 2
            scaler.step(optimizer)
            scaler.update()

    report = watched(loop)
    assert not errors(report), report.verdict.sentence


def test_weights_that_a_limit_sets_are_not_called_filled_from_half_precision():
    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(ROWS), WANTED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for one in model.parameters():
                    one.sign_()  # all are -1 or 1

    assert not [one for one in watched(loop).findings if "filled from half precision" in one.message]
