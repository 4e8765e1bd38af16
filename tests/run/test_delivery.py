"""What an optimizer is given of a step's gradients, beside FP32's treated alike."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ampcheck.run import script_outcomes
from ampcheck.run.session import Session
from ampcheck.values.doubts import DoubtKind
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

SCALE = 2.0**10
LARGE = 2.0**14
GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(32, 8, generator=GENERATOR)


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def loss_of(model):
    dtype = model[0].weight.dtype
    return F.mse_loss(model(ROWS.to(dtype)).float(), ROWS.sum(1, keepdim=True))


def watched(loop, **schedule):
    session = Session(Schedule(**schedule), as_cuda=True)
    with session.watching():
        loop()
    assert not session.watcher.broken, session.watcher.not_seen
    assert not _get_current_dispatch_mode_stack()
    return session


def changed(session):
    return [one for one in session.report("script.py").doubts if one.kind is DoubtKind.CHANGED]


def deliveries(session):
    recorded = session.watcher.tape.recorded
    return [step.beside.delivery for step in recorded if step.beside is not None]


def with_scaler(before=lambda *_: None, after=lambda *_: None, steps=6):
    """Return a loop with a GradScaler that does something to gradients, `before` they are unscaled and after that."""

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cuda", init_scale=SCALE)
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = loss_of(model)
            scaler.scale(loss).backward()
            before(model, scaler)
            scaler.unscale_(optimizer)
            after(model, scaler)
            scaler.step(optimizer)
            scaler.update()

    return loop


def squash(model, _):
    """Limit each element softly, as people do against outliers."""
    for parameter in model.parameters():
        parameter.grad = torch.tanh(parameter.grad)


def normalize(model, _):
    for parameter in model.parameters():
        parameter.grad.div_(parameter.grad.norm() + 1.0)


def cut(model, _):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


FINE = {
    "nothing": with_scaler(),
    "clipped": with_scaler(after=cut),
    "normalized": with_scaler(after=normalize),
    "squashed": with_scaler(after=squash),
    "only looked at": with_scaler(before=lambda model, _: [p.grad.norm() for p in model.parameters()]),
    "a power of two": with_scaler(before=lambda model, _: [p.grad.mul_(0.5) for p in model.parameters()]),
}
WRONG = {"squashed": with_scaler(before=squash), "normalized": with_scaler(before=normalize)}


@pytest.mark.parametrize("name", FINE)
def test_what_is_done_to_unscaled_gradients_is_no_harm(name):
    session = watched(FINE[name])
    assert any(delivery.rows for delivery in deliveries(session))
    assert not changed(session)
    assert session.report("script.py").verdict.word is not Health.UNSAFE


@pytest.mark.parametrize("name", WRONG)
def test_what_is_done_to_scaled_gradients_is_an_error_at_its_line(name):
    report = watched(WRONG[name]).report("script.py")
    assert report.verdict.word is Health.UNSAFE
    first = report.findings[0]
    assert first.code in {"AMP421", "AMP401"}
    doubt = next(one for one in report.doubts if one.kind is DoubtKind.CHANGED)
    function = {"squashed": squash, "normalized": normalize}[name]
    start = function.__code__.co_firstlineno
    assert start < doubt.line <= start + 4


def test_how_far_they_are_off_is_what_plain_gradients_say():
    """tanh of scaled gradients, divided again, beside tanh of the gradients: by a run of plain torch."""
    model = net()
    loss_of(model).backward()
    wide = [parameter.grad.clone() for parameter in model.parameters()]
    right, given = (
        torch.cat([one.tanh().flatten() for one in wide]),
        torch.cat([(one * SCALE).tanh().flatten() / SCALE for one in wide]),
    )
    error = float((given - right).norm() / right.norm())
    (delivery, *_) = deliveries(watched(WRONG["squashed"], first=1, every=0))
    energies = [sum(row[at] for row in delivery.rows.values()) for at in (0, 1)]
    assert (energies[0] / energies[1]) ** 0.5 == pytest.approx(error, rel=0.02)


def masters(divide, scale, steps=6):
    """Return a loop with half-precision weights and FP32 copies that an optimizer steps."""

    def loop():
        model = net(torch.float16)
        copies = [nn.Parameter(one.detach().float()) for one in model.parameters()]
        optimizer = torch.optim.SGD(copies, 0.01)
        for _ in range(steps):
            model.zero_grad()
            (loss_of(model) * 1e-7 * scale).backward()
            for copy, one in zip(copies, model.parameters(), strict=True):
                copy.grad = divide(one.grad, scale)
            optimizer.step()
            with torch.no_grad():
                for copy, one in zip(copies, model.parameters(), strict=True):
                    one.copy_(copy)

    return loop


def test_the_gradients_of_copies_are_compared_too():
    session = watched(masters(lambda grad, scale: grad.float() / scale, 2.0**23))
    assert session.report("script.py").verdict.word is Health.SAFE


def test_a_division_in_half_precision_loses_what_fp32_keeps():
    assert float(torch.tensor(0.1).half() / 2.0**23) == 0.0
    report = watched(masters(lambda grad, scale: (grad / scale).float(), 2.0**23)).report("script.py")
    assert report.verdict.word is Health.UNSAFE


def off_by(limit):
    """Return how far off the gradients are if all of them are limited softly while they are scaled, by plain torch."""
    model = net()
    loss_of(model).backward()
    wide = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    given = (wide * SCALE / limit).tanh() * limit / SCALE
    return float((given - (wide / limit).tanh() * limit).norm() / wide.norm())


@pytest.mark.parametrize("before", [0.002, 0.12])
def test_gradients_that_were_as_far_off_after_the_backward_were_not_changed_on_the_way(before, monkeypatch):
    """A little below what harms after the backward, and a little above it in the optimizer: it is the same error."""
    limit = next(limit for limit in torch.logspace(4, 0, 400).tolist() if off_by(limit) > 0.2)

    def limited(model, _):
        for parameter in model.parameters():
            parameter.grad = torch.tanh(parameter.grad / limit) * limit

    outcome_of = script_outcomes.outcome_of_step
    monkeypatch.setattr(
        script_outcomes,
        "outcome_of_step",
        lambda *given: replace(outcome_of(*given), grad_error=before, parts={}),
    )
    found = changed(watched(with_scaler(before=limited)))
    assert bool(found) is (before < 0.1)
    assert all(0.15 < one.error < 0.24 for one in found)


def test_without_a_closer_look_it_is_a_warning():
    report = watched(WRONG["squashed"], steps=frozenset({0})).report("script.py")
    found = [one for one in report.findings if one.code == "AMP421"]
    assert [str(one.severity) for one in found] == ["warning"]
    assert "did not test" in found[0].message


@pytest.mark.parametrize("name", FINE)
def test_the_script_trains_as_without(name):
    def state(**schedule):
        held = []
        with_copy = FINE[
            name
        ].__closure__  # the loop keeps its model to itself: what it leaves is compared by its loss
        assert with_copy
        torch.manual_seed(3)
        session = Session(Schedule(**schedule), as_cuda=True)
        with session.watching():
            FINE[name]()
            held.append(torch.rand(1))
        return held

    assert state() == state(steps=frozenset())


def test_fp32_goes_on_from_weights_that_an_optimizer_has_stepped_unseen():
    """Two optimizers step in turn, and a recording goes on: the weights were loaded in it, from what half holds."""

    def loop():
        torch.manual_seed(0)
        clients = [net(), net()]
        held = {name: value.detach().bfloat16() for name, value in net().state_dict().items()}
        kept = []
        for _ in range(30):
            for client in clients:
                optimizer = torch.optim.SGD(client.parameters(), 0.3)
                kept.append(optimizer)
                for value in held.values():
                    value.add_(torch.full_like(value, 1e-3))
                client.load_state_dict({name: value.float() for name, value in held.items()})
                for _ in range(2):
                    optimizer.zero_grad()
                    with torch.autocast("cuda", torch.bfloat16):
                        loss = loss_of(client)
                    loss.backward()
                    optimizer.step()

    session = watched(loop, first=60, every=1)
    assert changed(session) == []
    for delivery in deliveries(session):
        for error, size, *_ in delivery.rows.values():
            assert error <= 0.1**2 * size


@pytest.mark.parametrize("limits", [True, False])
def test_what_is_wrong_is_said_where_it_becomes_wrong(limits):
    """The norm of float16 gradients overflows in a clipping, and a later line divides what that has left."""

    def loop():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 1)).half()
        copies = [one.detach().float().requires_grad_() for one in model.parameters()]
        optimizer = torch.optim.SGD(copies, 0.01)
        for _ in range(6):
            model.zero_grad()
            (loss_of(model) * LARGE).backward()
            if limits:
                nn.utils.clip_grad_norm_(model.parameters(), LARGE)
            for copy, one in zip(copies, model.parameters(), strict=True):
                copy.grad = one.grad.float() / LARGE
            optimizer.step()
            with torch.no_grad():
                for copy, one in zip(copies, model.parameters(), strict=True):
                    one.copy_(copy)

    found = changed(watched(loop))
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert {"clip_grad_norm_" in lines[one.line - 1] for one in found} == ({True} if limits else set())
