"""Scripts that multiply the loss themselves: which scale that is, and the steps that it costs."""

import math

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.observe.script.scaling.losses import factor
from ampcheck.observe.script.scaling.scales_by_hand import ScaleByHand
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

LOSS = nn.Linear(2, 2)(torch.ones(1, 2)).sum()


def scaled(loss, scale):
    (loss * scale).backward()


def accumulate(scales, *, apart=False, steps=8):
    """Train on sums of gradients of two batches whose losses are multiplied by these; `apart` divides each by its own.

    Return the error of the gradients that were stepped last, and what is said to be wrong.
    """
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, 0.01)
        for step in range(steps):
            plain, done = [torch.zeros_like(one) for one in parameters], [0.0] * len(parameters)
            for at in range(2):
                x, target = torch.randn(16, 8), torch.randint(2, (16,))
                alone = torch.autograd.grad(nn.functional.cross_entropy(model(x), target), parameters)
                plain = [a + b for a, b in zip(plain, alone, strict=True)]
                with torch.autocast("cuda", torch.float16):
                    loss = nn.functional.cross_entropy(model(x), target)
                scale = scales(step, at)
                (loss * scale).backward()
                if apart:
                    done = [
                        one + parameter.grad / scale for one, parameter in zip(done, parameters, strict=True)
                    ]
                    optimizer.zero_grad()
            for parameter, summed in zip(parameters, done, strict=True):
                parameter.grad = summed if apart else parameter.grad / scale
            off = [
                (one.grad - exact).norm() / exact.norm() for one, exact in zip(parameters, plain, strict=True)
            ]
            optimizer.step()
            optimizer.zero_grad()
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    return max(map(float, off)), errors


def lets_go(model):
    for one in model.parameters():
        one.grad = None


def clears(model):
    model.zero_grad()


@pytest.mark.parametrize(
    "scaled",
    [
        lambda one, two: one * 1024.0 + two * 1024.0,
        lambda one, two: sum(1024.0 * loss for loss in (one, two)),
        lambda one, two: (one * 1024.0 + two * 1024.0) / 4,
    ],
)
def test_a_sum_of_losses_is_multiplied_by_what_each_of_them_is(scaled):
    weights = torch.randn(3, requires_grad=True)
    one, two = (weights * 2).sum(), weights.square().sum()
    loss = scaled(one, two)
    found = factor(loss)
    by_autograd = torch.autograd.grad(loss, weights, retain_graph=True)[0]
    bare = torch.autograd.grad(one + two, weights)[0]
    assert torch.allclose(by_autograd, bare * found, rtol=1e-5)


@pytest.mark.parametrize(
    "scaled",
    [
        lambda one, two: one * 1024.0 + two * 128.0,
        lambda one, two: torch.add(one * 1024.0, two * 1024.0, alpha=2),
        lambda one, two: one * 1024.0 + two,
    ],
)
def test_losses_that_are_multiplied_differently_have_no_scale_in_common(scaled):
    weights = torch.randn(3, requires_grad=True)
    assert factor(scaled((weights * 2).sum(), weights.square().sum())) == 1.0


def test_two_losses_that_are_scaled_one_by_one_have_a_known_scale():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        optimizer, scale = torch.optim.SGD(model.parameters(), 0.01), 1024.0
        for _ in range(6):
            with torch.autocast("cuda", torch.float16):
                out, target = model(torch.randn(16, 8)), torch.randint(2, (16,))
            losses = nn.functional.cross_entropy(out, target), out.square().mean()
            sum(loss * scale for loss in losses).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
            optimizer.zero_grad()
    report = session.report("script.py")
    assert report.verdict.word is Health.SAFE
    assert "2^10" in report.verdict.sentence


def test_a_closure_that_scales_too_much_is_an_error_at_its_first_step():
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    x, y = torch.randn(1024, 2), torch.randn(1024, 1)
    with session.watching():
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                out = model(x)
            loss = (out.float() - y).square().mean() / 1e-6
            (loss * 65536).backward()
            for parameter in model.parameters():
                parameter.grad.div_(65536)
            return loss

        for _ in range(3):
            optimizer.step(closure)
    report = session.report("script.py")
    assert not all(bool(one.isfinite().all()) for one in model.parameters())
    assert "AMP202" in [one.code for one in report.findings if one.severity is Severity.ERROR]
    assert report.loop.first_scales == {"scale by hand": 65536.0}


@pytest.mark.parametrize(
    ("turn", "severity"), [((1, 0), "error"), ((1,) + (0,) * 9, "warning"), ((0,), None)]
)
def test_a_fixed_scale_by_hand_that_some_batches_never_fit_is_said_at_its_backward(turn, severity):
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for step in range(60):
            large = 1e4 if turn[step % len(turn)] else 1e-3
            with torch.autocast("cuda", torch.float16):
                loss = large * model(torch.randn(16, 8)).float().square().sum()
            optimizer.zero_grad()
            scaled(loss, 2.0**14)
            for parameter in model.parameters():
                parameter.grad.div_(2.0**14)
            if not all(bool(one.grad.isfinite().all()) for one in model.parameters()):
                skipped += 1
                continue
            optimizer.step()
    assert skipped == sum(turn) * 60 // len(turn)
    found = [one for one in session.report("script.py").findings if one.code == "AMP206"]
    assert [one.severity for one in found] == ([Severity(severity)] if severity else [])
    for one in found:
        assert one.message.startswith("the loss scale stays at 2^14, the script never lowers it")
        assert not any("further" in line for line in one.fix)
        assert one.origin.line == line_of(scaled, "backward()")


def test_a_scale_that_changes_within_an_accumulation_is_an_error_at_the_backward_that_adds():
    off, errors = accumulate(lambda step, at: 2.0 ** (10 + 2 * at))
    assert off > 0.3
    assert [one.code for one in errors] == ["AMP418"]
    assert "are multiplied by different scales" in errors[0].message
    assert errors[0].sites[0].file.endswith("test_hand_scales.py")


@pytest.mark.parametrize(
    ("scales", "apart"),
    [(lambda step, _: 2.0 ** (10 + step // 4), False), (lambda _, at: 2.0 ** (10 + 2 * at), True)],
)
def test_a_scale_that_changes_between_steps_or_is_divided_away_each_time_is_none(scales, apart):
    off, errors = accumulate(scales, apart=apart)
    assert off < 0.03
    assert errors == []


@pytest.mark.parametrize(
    ("scales", "dynamic"),
    [
        ([256, 1024, 4096, 16384, 4096, 16384, 4096], True),
        ([1024, 512, 256, 128, 64, 32], False),  # which may be a weight of the loss that is lowered
        ([1024, 700, 1024, 700, 1024, 700], False),  # weights of two losses
        ([1024, 4096] * 3, False),
        ([1024] * 6, False),
    ],
)
def test_what_rises_and_falls_by_powers_of_two_is_a_loss_scale(scales, dynamic):
    scale = ScaleByHand()
    for step, by in enumerate(scales):
        scale.multiplied(step, float(by), LOSS, list)
    assert scale.is_dynamic is dynamic


@pytest.mark.parametrize("drops", [lets_go, clears])
@pytest.mark.parametrize("scale", [2.0**14, 2.0**4])
def test_steps_that_a_constant_scale_leaves_out_are_not_called_safe(scale, drops):
    """Each sixth batch overflows, and is left out; the others train."""
    torch.manual_seed(0)
    session, skipped = Session(Schedule(), as_cuda=True), 0
    with session.watching():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).half()
        low = list(model.parameters())
        master = [one.detach().float().clone() for one in low]
        optimizer = torch.optim.SGD(master, 1e-4)
        for step in range(60):
            weights = torch.full((16,), 200.0 if step % 6 == 0 else 1.0)
            out = model(torch.randn(16, 8).half()).float()
            rows = nn.functional.cross_entropy(out, torch.randint(2, (16,)), reduction="none")
            loss = (rows * weights).mean()
            (loss * scale).backward()
            if all(bool(one.grad.isfinite().all()) for one in low):
                for wide, one in zip(master, low, strict=True):
                    wide.grad = one.grad.float() / scale
                optimizer.step()
                with torch.no_grad():
                    for wide, one in zip(master, low, strict=True):
                        one.copy_(wide)
            else:
                skipped += 1
            drops(model)
    assert skipped == (10 if scale > 2.0**4 else 0)
    report = session.report("script.py")
    assert (report.verdict.word is Health.SAFE) is (not skipped)
    if skipped and drops is lets_go:
        assert "10 backwards whose gradients were gone before a step" in report.verdict.sentence


@pytest.mark.parametrize(("grows", "bad"), [(False, True), (True, False)])
def test_a_scale_by_hand_that_never_grows_falls_below_what_gradients_need(grows, bad):
    torch.manual_seed(0)
    session, value, good = Session(Schedule(), as_cuda=True), 2.0**10, 0
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for step in range(400):
            x = torch.randn(16, 8)
            if step % 20 == 10:
                x[0, 0] = math.nan  # a broken batch, now and then
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            (loss * value).backward()
            grads = [parameter.grad for parameter in model.parameters()]
            if all(bool(grad.isfinite().all()) for grad in grads):
                for grad in grads:
                    grad.div_(value)
                optimizer.step()
                good += 1
                if grows and good % 16 == 0:
                    value *= 2
            else:
                value /= 2
    report = session.report("script.py")
    lowest = min(event.after for event in report.loop.scales)
    assert lowest == (2.0**-10 if bad else lowest)
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP206"] if bad else [])
    if bad:
        assert "fell from 2^10 to 2^-10" in errors[0].message
        assert "it never grows again" in errors[0].message
        assert "double the scale again" in str(errors[0].fix)


def test_the_step_that_is_skipped_is_that_of_the_backward_before_the_fall():
    """It may be tried once more within the step, or the next step may be the first to have another scale."""
    scale = ScaleByHand()
    for step, by in [
        (0, 2.0**9),
        (0, 2.0**8),
        (1, 2.0**8),
        (2, 2.0**8),
        (2, 2.0**7),
        (3, 2.0**7),
        (4, 2.0**6),
    ]:
        scale.multiplied(step, by, LOSS, list)
    assert [(one.step, one.before, one.skipped) for one in scale.events()] == [
        (0, 2.0**9, True),
        (2, 2.0**8, True),
        (3, 2.0**7, True),
    ]


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_a_loss_that_is_infinite_only_times_its_scale_is_no_infinite_loss(size):
    torch.manual_seed(0)
    session, scale, shown = Session(Schedule(), as_cuda=True), 2.0**14, []
    with session.watching():
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        for _ in range(8):
            with torch.autocast("cuda", torch.float16):
                off = model(torch.randn(64, 8)) - 3
            loss = (size * off * off).mean()  # in float16
            optimizer.zero_grad()
            (loss * scale).backward()
            shown.append(loss.item())
            for parameter in model.parameters():
                parameter.grad.div_(scale)
            optimizer.step()
    assert 65504 / scale < shown[0] < 65504
    # A gradient of 1e3 times the scale is infinite, one of 1 is not.
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert bool(errors) is (size > 1.0)
