"""Where errors are said to be: at the line that causes them, whoever runs it, and not worse than they are."""

import queue
import threading
from contextlib import nullcontext

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def watched(loop):
    session = Session(Schedule(), as_cuda=True)
    session.watcher.thread.follows = True  # as `ampcheck run` lets it
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


# -- a thread that trains, while the one that began waits


def learns(steps, *, once):
    """Train in a thread that enters autocast once, or for each forward; return the losses."""
    losses = []

    def run():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**10)
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16) if once else nullcontext():
            for _ in range(steps):
                optimizer.zero_grad()
                with nullcontext() if once else torch.autocast("cuda", torch.float16):
                    loss = F.mse_loss(model(x).float(), x.sum(1, keepdim=True))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.item())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return losses


def test_a_thread_that_trains_does_nothing_before_its_first_step():
    losses = []
    report, errors = watched(lambda: losses.extend(learns(20, once=False)))
    assert losses[-1] < 0.5 * losses[0]
    assert errors == []
    assert "AMP405" not in {one.code for one in report.findings}


def test_a_region_that_a_thread_enters_once_is_said_where_the_model_is_called():
    losses = []
    _, errors = watched(lambda: losses.extend(learns(20, once=True)))
    assert max(losses[2:]) == min(losses[2:])  # the witness: nothing is learned
    assert [one.code for one in errors] == ["AMP419"]
    assert errors[0].origin.line == line_of(learns, "loss = F.mse_loss(model(x)")
    assert "()" not in errors[0].message


# -- an update between two optimizers


def in_between(growth_interval, steps=120):
    torch.manual_seed(0)
    body, head = nn.Linear(8, 16), nn.Linear(16, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.01) for part in (body, head)]
    scaler = torch.amp.GradScaler("cuda", 2.0**8, growth_interval=growth_interval)
    changes = 0
    for _ in range(steps):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(head(body(x).relu()).float(), x.sum(1, keepdim=True))
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            changes += scaler.get_scale() != before
    return changes


@pytest.mark.parametrize(("growth_interval", "severity"), [(2000, Severity.WARNING), (7, Severity.ERROR)])
def test_an_update_between_two_optimizers_is_as_bad_as_the_scale_changes_often(growth_interval, severity):
    changes = []
    report, _ = watched(lambda: changes.append(in_between(growth_interval)))
    assert (changes[0] > 10) is (severity is Severity.ERROR)
    between = [one for one in report.findings if one.code == "AMP405"]
    assert [one.severity for one in between] == [severity]
    assert "AMP418" not in {one.code for one in report.findings}


# -- what is saved for the backward in half precision


class Decay(nn.Module):
    """A rate of about 1e-9, times time in seconds."""

    def __init__(self):
        super().__init__()
        self.rate, self.level = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        rate = torch.exp(self.rate(x).float() - 20.0)
        return self.level(x).float() + 1e9 * rate


def packed(tensor):
    return tensor.half() if tensor.dtype == torch.float32 and tensor.dim() > 1 else tensor


def saved_in_half(pack):
    torch.manual_seed(0)
    model = Decay()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cuda", 2.0**8)
    for _ in range(8):
        x = torch.randn(32, 4)
        optimizer.zero_grad()
        kept = torch.autograd.graph.saved_tensors_hooks(
            lambda one: (pack(one), one.dtype), lambda two: two[0].to(two[1])
        )
        with kept, torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.rate.weight.grad.abs().max().item(), model.level.weight.grad.abs().max().item()


def test_a_result_that_is_saved_as_zero_is_said_where_it_is_computed():
    largest = []
    _, errors = watched(lambda: largest.extend(saved_in_half(packed)))
    assert largest[0] == 0.0 < largest[1]
    places = {one.code: one.origin.line for one in errors}
    assert places == {"AMP103": line_of(packed, "half()"), "AMP201": line_of(Decay.forward, "torch.exp")}


def test_a_result_that_is_saved_as_it_is_leaves_nothing_to_say():
    largest = []
    report, errors = watched(lambda: largest.extend(saved_in_half(lambda tensor: tensor)))
    assert largest[0] > 0.0
    assert errors == []
    assert report.verdict.word is Health.SAFE


# -- inputs that a thread has cast


def fetched(kind, steps=12):
    """Train on counts that a thread casts to `kind`; return how many of them are infinite."""
    made: queue.Queue = queue.Queue(2)

    def fetches():
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            counts = 30_000 * (3 * torch.rand(32, 8, generator=generator)).exp()
            made.put((counts.to(kind), counts.mean(1, keepdim=True) / 100_000))

    torch.manual_seed(0)
    thread = threading.Thread(target=fetches)
    thread.start()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**8)
    infinite = 0
    for _ in range(steps):
        counts, wanted = made.get()
        infinite += int(counts.isinf().sum())
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            shares = (counts.float() / 20_000).clamp(0, 40)
            loss = F.mse_loss(model(shares).float(), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    thread.join()
    return infinite


def test_inputs_that_a_thread_makes_infinite_are_said_at_its_cast():
    infinite = []
    report, errors = watched(lambda: infinite.append(fetched(torch.float16)))
    assert infinite[0] > 0
    assert errors[0].code == "AMP101"
    assert errors[0].origin.line == line_of(fetched, "counts.to(kind)")
    assert report.verdict.word is Health.UNSAFE


def test_inputs_that_a_thread_leaves_as_they_are_are_none():
    infinite = []
    _, errors = watched(lambda: infinite.append(fetched(torch.float32)))
    assert infinite == [0]
    assert errors == []


# -- a hook that limits gradients within the backward


def limited(limit, *, times_scale, steps=12):
    """Train with a hook that clamps the gradient of a hidden layer; return which share of it was clamped last."""
    torch.manual_seed(0)
    body, head = nn.Linear(8, 16), nn.Linear(16, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    scaler = torch.amp.GradScaler("cuda", 2.0**12)
    shares = [0.0]

    def clamps(grad):
        most = limit * (scaler.get_scale() if times_scale else 1.0)
        shares.append(float((grad.abs() > most).float().mean()))
        return grad.clamp(-most, most)

    for _ in range(steps):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            hidden = body(x).tanh()
            hidden.register_hook(clamps)
            loss = F.mse_loss(head(hidden).float(), x.sum(1, keepdim=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return shares[-1]


def test_a_hook_that_limits_scaled_gradients_is_no_rounding():
    shares = []
    _, errors = watched(lambda: shares.append(limited(1.0, times_scale=False)))
    assert shares[0] > 0.9
    assert errors[0].code == "AMP401"
    assert "clamp in the backward limits gradients that are still multiplied" in errors[0].message
    assert "AMP501" not in {one.code for one in errors}


def test_a_hook_whose_limit_is_multiplied_too_is_no_error():
    shares = []
    _, errors = watched(lambda: shares.append(limited(1.0, times_scale=True)))
    assert shares[0] < 0.1
    assert errors == []


# -- a step that leaves the other optimizer's line where it is


def test_the_lines_of_a_clipping_keep_what_is_unscaled_already():
    def clips():
        torch.manual_seed(0)
        body, head = nn.Linear(8, 16), nn.Linear(16, 1)
        first, second = (torch.optim.SGD(part.parameters(), 0.1) for part in (body, head))
        scaler = torch.amp.GradScaler("cuda", 2.0**12)
        for _ in range(6):
            x = torch.randn(32, 8)
            first.zero_grad()
            second.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(head(body(x).tanh()).float(), x.sum(1, keepdim=True))
            scaler.scale(loss).backward()
            scaler.unscale_(second)
            nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
            scaler.step(first)
            scaler.step(second)
            scaler.update()

    _, errors = watched(clips)
    (finding,) = errors
    assert finding.code == "AMP401"
    lines = [line.strip() for line in finding.fix]
    assert "scaler.unscale_(second)" in lines
    assert any(line.startswith("scaler.unscale_(first)") for line in lines)


# -- a count that is kept in half precision


class Prior(nn.Module):
    """Subtracts the logarithm of how often it has seen something."""

    def __init__(self, dtype):
        super().__init__()
        self.out, self.counts = nn.Linear(8, 2), torch.ones(2, dtype=dtype)

    def forward(self, x, y):
        self.counts += torch.bincount(y, minlength=2).to(self.counts.dtype)
        share = self.counts.float() / self.counts.float().sum()
        return self.out(x).float() + share.log()


def test_a_count_that_is_infinite_before_the_step_is_said_to_be_kept_in_half_precision():
    model, y = Prior(torch.float16), torch.arange(6000) % 2

    def counts():
        torch.manual_seed(0)
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**6)
        for _ in range(60):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(torch.randn(6000, 8), y), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    report, errors = watched(counts)
    assert model.counts.isinf().all()
    assert report.verdict.word is Health.UNSAFE
    said = next(one for one in errors if one.code == "AMP206")
    assert said.origin.line == line_of(Prior.forward, "self.counts +=")
    assert said.message.endswith(
        "float16 numbers that may have overflowed in an earlier step: keep them in FP32"
    )


# -- a thread that computes gradients, and the main one that steps


def learner_beside(*, once, clears=False):
    """Compute gradients in a thread that enters autocast once, or for each batch; step in the main one.

    It may clear the casts that autocast keeps.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", 2.0**10)
    jobs, results = queue.Queue(), queue.Queue()
    region = torch.autocast("cuda", torch.float16) if once else nullcontext()

    def learns():
        with region:
            while (x := jobs.get()) is not None:
                if clears:
                    torch.clear_autocast_cache()
                with nullcontext() if once else torch.autocast("cuda", torch.float16):
                    loss = F.mse_loss(model(x).float(), x.sum(1, keepdim=True))
                scaler.scale(loss).backward()
                results.put(loss.item())

    thread = threading.Thread(target=learns)
    thread.start()
    for _ in range(24):
        optimizer.zero_grad()
        jobs.put(torch.randn(32, 8))
        results.get()
        scaler.step(optimizer)
        scaler.update()
    jobs.put(None)
    thread.join()


@pytest.mark.parametrize(("once", "clears"), [(True, False), (True, True), (False, False)])
def test_a_region_that_a_thread_of_gradients_enters_once_is_said(once, clears):
    report, errors = watched(lambda: learner_beside(once=once, clears=clears))
    stale = once and not clears
    assert [one.code for one in errors] == (["AMP419"] if stale else [])
    if stale:
        assert errors[0].origin.line == line_of(learner_beside, "with region:")
    else:
        assert report.verdict.word is not Health.SAFE


# -- a thread that acts without gradients, and the main one that trains


def actor_beside(*, once, clears=False, keeps=False):
    """Act in a thread that enters autocast once, or for each request; train in the main one.

    It may clear the casts that autocast keeps, or act by a copy of the weights that it keeps on purpose.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, jobs, results = torch.optim.SGD(model.parameters(), 0.1), queue.Queue(), queue.Queue()
    region = torch.autocast("cuda", torch.float16) if once else nullcontext()
    first = model[0].weight.half()

    def acts():
        with region, torch.no_grad():
            while (x := jobs.get()) is not None:
                if clears:
                    torch.clear_autocast_cache()
                with nullcontext() if once else torch.autocast("cuda", torch.float16):
                    results.put((x.half() @ first.t() if keeps else model(x)).float())

    thread = threading.Thread(target=acts)
    thread.start()
    for _ in range(24):
        jobs.put(torch.randn(32, 8))
        x = results.get().mean(1, keepdim=True) * torch.randn(32, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    jobs.put(None)
    thread.join()


@pytest.mark.parametrize("changes", [{}, {"clears": True}, {"keeps": True}, {"once": False}])
def test_a_region_that_a_thread_of_an_actor_enters_once_is_said(changes):
    report, errors = watched(lambda: actor_beside(**{"once": True} | changes))
    assert [one.code for one in errors] == ([] if changes else ["AMP419"])
    if not changes:
        assert errors[0].origin.line == line_of(actor_beside, "with region, torch.no_grad():")
    else:
        assert report.verdict.word is not Health.SAFE
