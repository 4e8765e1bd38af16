"""Threads that feed training with numbers in half precision: recorded steps go on from what FP32 has there."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from code_lines import line_of
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.script import results as results_module
from ampcheck.observe.script.workers import COMPUTED_ELSEWHERE
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

STEPS, ROWS = 12, 64


def drawn(step):
    return torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step))


def energies(x):
    """Square far out and come back: 65504 is passed on the way."""
    return ((x * 100).square() * 4).sum(1, keepdim=True).div(4e4).clamp(max=50.0)


def differences(x):
    """Sum many numbers up, and take neighbours apart again."""
    total, sums = torch.zeros_like(x[0]), []
    for row in x * 2 + 100:
        total = total + row
        sums.append(total)
    return (
        torch.stack(sums)
        .float()
        .diff(dim=0, prepend=torch.zeros(1, x.shape[1]))
        .sub(100)
        .sum(1, keepdim=True)
    )


def scores(x):
    """Compute nothing that half precision cannot hold."""
    return torch.tanh(x * 0.5).sum(1, keepdim=True)


def from_thread(make):
    """Yield what one thread makes, for as long as it lives."""
    held = queue.Queue(2)

    def feed():
        for step in range(STEPS):
            held.put(make(step))

    threading.Thread(target=feed, daemon=True).start()
    for _ in range(STEPS):
        yield held.get(timeout=60)


def from_pool(make):
    """Yield what jobs of a pool make, one ahead."""
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(make, 0)
        for step in range(STEPS):
            job, ahead = ahead, pool.submit(make, step + 1)
            yield job.result(timeout=60)


def train(feed, target, dtype=torch.float16, later=lambda y: y, device="cuda"):
    """Train on what a thread makes of its draws in a dtype; return the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for x, y in feed(lambda step: (drawn(step), target(drawn(step).to(dtype)).float())):
        optimizer.zero_grad()
        goal = later(y)
        with torch.autocast(device, torch.bfloat16):
            loss = F.mse_loss(model(x).float(), goal)
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def audit(*given, **named):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        weights = train(*given, **named)
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py"), weights


FEEDS = pytest.mark.parametrize("feed", [from_thread, from_pool])


@FEEDS
@pytest.mark.parametrize("later", [lambda y: y, lambda y: y * 1.0])  # in the model's step, and before it
@pytest.mark.parametrize("target", [energies, differences])
def test_what_a_thread_spoils_in_half_precision_is_an_error(feed, later, target):
    x = drawn(3)
    lost = (target(x.half()).float() - target(x)).norm() / target(x).norm()
    assert lost > 0.3  # plain torch says so
    report, _ = audit(feed, target, later=later)
    assert report.verdict.word is Health.UNSAFE


@FEEDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_half_precision_holds_is_seen_and_safe(feed, dtype):
    x = drawn(3)
    assert (scores(x.to(dtype)).float() - scores(x)).norm() < 0.02 * scores(x).norm()
    report, _ = audit(feed, scores, dtype)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@FEEDS
def test_the_same_in_fp32_is_safe(feed):
    report, _ = audit(feed, differences, torch.float32)
    assert report.verdict.word is Health.SAFE, report.verdict.sentence


@FEEDS
@pytest.mark.parametrize("target", [energies, differences, scores])
def test_the_numbers_of_the_script_stay_its_own(feed, target):
    before = vars(threading.Thread)["_bootstrap_inner"]
    session = Session(Schedule())
    with session.watching():
        watched = train(feed, target, device="cpu")
    assert session.report("script.py").loop.recorded
    assert vars(threading.Thread)["_bootstrap_inner"] is before
    assert all(map(torch.equal, watched, train(feed, target, device="cpu")))


@FEEDS
def test_what_goes_another_way_than_through_tensors_is_not_safe(feed):
    def through_a_list(x):
        return torch.tensor(energies(x).tolist())

    report, _ = audit(feed, through_a_list)
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert f"{COMPUTED_ELSEWHERE}, first at test_workers.py:" in report.verdict.sentence


def test_nor_is_what_there_was_no_time_for(monkeypatch):
    monkeypatch.setattr(results_module, "_OPERATIONS", 6)
    report, _ = audit(from_thread, energies)
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert COMPUTED_ELSEWHERE in report.verdict.sentence


def results(make):
    """Return what a thread computes, followed, and what stands beside it."""
    own = results_module.Results()
    found = []

    def run():
        with BesideMode(own):
            found.append(make())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0], own.known(found[0])


def test_fp32_stands_beside_what_a_thread_has_computed():
    x = drawn(0)
    out, beside = results(lambda: x.half().mul(3).exp())
    assert torch.equal(out, x.half().mul(3).exp())
    torch.testing.assert_close(beside.flat.view(out.shape), x.mul(3).exp())


def test_it_stands_no_more_once_the_script_has_written_there_itself():
    own = results_module.Results()
    with BesideMode(own):
        out = drawn(0).half() + 1
    assert own.known(out) is not None
    assert own.known(out[2:]) is not None
    out[0, 0] = 5
    assert own.known(out) is None


def test_a_write_that_is_under_way_is_read_as_it_is():
    own, out = results_module.Results(), drawn(0).half()
    seen = []

    def execute(func, args, kwargs):
        seen.append(own.known(out))
        return func(*args, **kwargs)

    with BesideMode(own):
        out.add_(1)
        own._execute = execute
        out.add_(1)
    assert seen == [None]
    assert own.known(out) is not None


def test_a_state_that_changes_from_step_to_step_begins_anew():
    own, count = results_module.Results(), torch.full((3,), 2048.0, dtype=torch.float16)
    with BesideMode(own):
        for own.steps in range(6):
            count += 1  # which 2048 does not show
            wide = own.of(count)
            assert wide is None or wide.max() <= 2048 + 2


def served(dtype, size):
    """Let a thread compute gradients and send them in a dtype; the main thread gives them to the optimizer."""
    torch.manual_seed(0)
    session, inbox, outbox = Session(Schedule(), as_cuda=True), queue.Queue(), queue.Queue()
    with session.watching():
        model, replica = nn.Linear(6, 4), nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)

        def work():
            while (weights := inbox.get()) is not None:
                nn.utils.vector_to_parameters(weights, replica.parameters())
                replica.zero_grad()
                (size * replica(drawn(0)).square().mean()).backward()
                outbox.put([one.grad.to(dtype) for one in replica.parameters()])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        for _ in range(STEPS):
            inbox.put(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
            for parameter, grad in zip(model.parameters(), outbox.get(timeout=60), strict=True):
                parameter.grad = grad.float()
            optimizer.step()
        inbox.put(None)
        thread.join()
    return session.report("script.py"), [one.grad for one in model.parameters()]


@pytest.mark.parametrize(
    ("dtype", "size", "lost"),
    [(torch.float16, 1e-8, True), (torch.float16, 1.0, False), (torch.float32, 1e-8, False)],
)
def test_gradients_that_only_threads_compute_are_judged_as_they_arrive(dtype, size, lost):
    report, grads = served(dtype, size)
    assert all(bool((grad == 0).all()) for grad in grads) is lost  # plain torch's word
    assert (report.verdict.word is Health.UNSAFE) is lost


@pytest.mark.parametrize("region", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("held", [torch.float16, torch.float32])
def test_what_a_thread_computes_without_gradients_is_named_at_its_line(region, held):
    def target(x):
        with region():
            found = energies(x.to(held))
        return found.float().mul(1.0)  # on a tensor of that region, outside of it

    report, _ = audit(from_thread, target, dtype=torch.float32, later=torch.clone)
    errors = [one for one in report.findings if one.severity == "error"]
    assert bool(errors) is (held is torch.float16)
    assert all(one.origin.line == line_of(energies, "square()") for one in errors[:1])


def scored(score, dtype, steps=STEPS):
    """Let a thread score predictions in a dtype beside training, as it goes on; return the report and the scores."""
    session, scores = Session(Schedule(), as_cuda=True), []
    with session.watching():
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with ThreadPoolExecutor(1) as pool:
            for step in range(steps):
                x = drawn(step)
                with torch.autocast("cuda", torch.float16):
                    loss = F.mse_loss(model(x), x[:, :4])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    predicted = model(x)
                scores.append(pool.submit(score, predicted.to(dtype), x[:, :4].to(dtype)).result(timeout=60))
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py"), scores


def squares(predicted, x):
    return ((predicted - x) * 1000.0).square().mean().sqrt().item()


def nearest(predicted, x):
    rows = predicted * 100.0
    sizes = rows.square().sum(1, keepdim=True) * 4.0
    return (sizes - sizes.t() + (sizes - sizes)).argmin(1).float().mean().item()


def is_finite(predicted, x):
    scaled = (predicted - x) * 1000.0
    return bool(scaled.square().isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("score", "line", "said"),
    [
        (squares, ".square()", "a result that is not finite"),
        (nearest, "rows.square()", "picks by them (argmin)"),
        (is_finite, "", ""),
    ],
)
def test_what_a_thread_reads_or_picks_after_an_overflow_is_an_error(score, line, said, dtype):
    report, scores = scored(score, dtype)
    _, wide = scored(score, torch.float32)
    assert (scores == wide) is (dtype is torch.float32)
    errors = [one for one in report.findings if one.severity == "error"]
    assert bool(errors) is (bool(said) and dtype is torch.float16)
    for error in errors:
        assert (error.code, error.origin.line) == ("AMP510", line_of(score, line))
        assert said in error.message


@pytest.mark.parametrize("small", [1e-7, 1.0])
def test_gradients_that_underflow_in_threads_are_placed_at_their_line_with_a_scale_to_multiply_by(small):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching(), ThreadPoolExecutor(1) as pool:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def gradients(x):
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(x), x[:, :1]) * small
            return torch.autograd.grad(loss, list(model.parameters()))

        for step in range(STEPS):
            found = pool.submit(gradients, drawn(step)).result(timeout=60)
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            optimizer.step()
    zeros = [bool((one == 0).all()) for one in found]
    assert any(zeros) is (small < 1.0)
    errors = [one for one in session.report("script.py").findings if one.severity == "error"]
    assert bool(errors) is (small < 1.0)
    for error in errors[:1]:
        assert error.origin.line
        assert "init_scale" not in " ".join((error.message, *error.fix))
