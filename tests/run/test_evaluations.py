"""What a script computes between its steps, without gradients: by which numbers an evaluation decides."""

import inspect
from copy import deepcopy
from math import isfinite

import pytest
import torch
from code_lines import line_of
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def distances(query, keys):
    """Return squared distances as a difference of large numbers, which float16 rounds away."""
    return query.square().sum(1, keepdim=True) + keys.square().sum(1) - 2 * query @ keys.T


def train(evaluate, *, guard=torch.no_grad, steps=30):
    """Train, and evaluate after ten steps."""
    torch.manual_seed(0)
    encoder, metrics = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), []
    optimizer = torch.optim.SGD(encoder.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    for step in range(steps):
        x = torch.randn(32, 8)
        with torch.autocast("cuda", torch.float16):
            loss = (encoder(x).float()[:, 0] - x[:, 0]).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 9:
            with guard(), torch.autocast("cuda", torch.float16):
                metrics.append(evaluate(encoder))
    return metrics, [one.detach().clone() for one in encoder.parameters()], torch.rand(1)


def watched(evaluate, **how):
    """Do the same under watch; return the errors as well."""
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        done = train(evaluate, **how)
    assert not session.watcher.broken, session.watcher.not_seen
    return done, [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]


def outliers(encoder, *, wide):
    """Return how often the distance of an outlier to its nearest neighbour is larger than that of another point."""
    keys = encoder(100 + torch.randn(64, 8)).float()
    queries = encoder(100 + torch.randn(64, 8)).float(), encoder(100 + 1.5 * torch.randn(64, 8)).float()
    with torch.autocast("cuda", enabled=not wide):
        good, bad = (distances(one, keys).clamp(min=0).amin(1) for one in queries)
    return (bad[:, None] > good).float().mean().item()


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_that_decides_by_nothing_but_rounding_is_an_error(wide, guard):
    (metrics, *_), errors = watched(lambda encoder: outliers(encoder, wide=wide), guard=guard)
    assert all(0.6 < one < 0.95 for one in metrics) is wide
    assert [one.code for one in errors] == ([] if wide else ["AMP510"])


def score(encoder, *, wide=False, batches=2):
    """Return a mean of squares of numbers near 500, in a list as over batches."""
    with torch.autocast("cuda", enabled=not wide):
        away = [500 + encoder(torch.randn(64, 8)) for _ in range(batches)]
        squares = [(one * one).mean() for one in away]
    return torch.stack(squares).mean().item()


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_an_evaluation_whose_result_overflows_is_an_error_where_it_does(wide, guard):
    (metrics, *_), errors = watched(lambda encoder: score(encoder, wide=wide), guard=guard)
    assert [one < float("inf") for one in metrics] == [wide] * 3
    assert [one.code for one in errors] == ([] if wide else ["AMP510"])
    for error in errors:
        code, first = inspect.getsourcelines(score)
        assert error.origin.line == first + next(n for n, text in enumerate(code) if "one * one" in text)


def test_what_is_infinite_in_fp32_as_well_is_no_error():
    (metrics, *_), errors = watched(lambda encoder: (1 / (0 * encoder(torch.randn(8, 8)).sum())).item())
    assert all(not -float("inf") < one < float("inf") for one in metrics)
    assert errors == []


def gap(encoder):
    """Return by how much float16 changes an output: a number that is zero in FP32."""
    x = torch.randn(64, 8)
    with torch.autocast("cuda", enabled=False):
        exact = encoder(x)
    apart = (encoder(x) - exact).abs()
    return apart.max().item(), (apart > 1e-5).float().mean().item()


def test_to_measure_what_rounding_does_is_no_error():
    (metrics, *_), errors = watched(gap)
    assert all(largest > 0.0 for largest, _ in metrics)
    assert errors == []


def accuracy(encoder):
    return (encoder(torch.randn(64, 8)).argmax(1) == 0).float().mean().item()


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("evaluate", [accuracy, gap, score, lambda encoder: outliers(encoder, wide=False)])
def test_what_is_evaluated_and_trained_is_what_it_is_without_us(evaluate, guard):
    session = Session(Schedule(), as_cuda=True)
    session.watcher.tape.workers.evaluation.close()
    with session.watching():
        alone = train(evaluate, guard=guard)
    (metrics, weights, drawn), _ = watched(evaluate, guard=guard)
    assert metrics == alone[0]
    assert all(map(torch.equal, weights, alone[1]))
    assert torch.equal(drawn, alone[2])


# -- numbers in half precision by which a script says which model is best


class Best:
    """Keeps the best score, as early stopping does."""

    def __init__(self):
        self.score, self.times, self.kept = -float("inf"), 0, []

    def __call__(self, score):
        if score > self.score:
            self.score, self.times = score, self.times + 1


def evaluated_often(evaluate, dtype):
    """Train, and evaluate behind each step, under watch."""
    torch.manual_seed(0)
    model, best = nn.Linear(8, 1), Best()
    optimizer, session = torch.optim.SGD(model.parameters(), 1e-3), Session(Schedule(), as_cuda=True)
    with session.watching():
        for best.steps in range(16):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (model(torch.randn(32, 8)).float() - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            evaluate(model, dtype, best)
    assert not session.watcher.broken, session.watcher.not_seen
    return session, best


def scored(model, dtype, best):
    """Return a score that comes ever closer to 1: in bf16 the last number before that is 0.996."""
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        out = model(x)
    error = (out.to(dtype)[:, 0] * 0 + 0.01 * 0.9**best.steps).mean()
    best(1 - error)


@pytest.mark.parametrize(("dtype", "still"), [(torch.bfloat16, True), (torch.float32, False)])
def test_a_score_that_half_precision_keeps_from_improving_is_never_safe(dtype, still):
    session, best = evaluated_often(scored, dtype)
    assert (best.times < 8) is still
    verdict = session.report("script.py").verdict
    line = inspect.getsourcelines(Best)[1] + 7
    words = f"the script decides at test_evaluations.py:{line} by a number in half precision"
    assert (
        any(words in gap and f"in {16 - best.times} evaluations" in gap for gap in verdict.coverage.gaps)
        is still
    )
    assert verdict.word is (Health.PARTLY_AUDITED if still else Health.SAFE)


def read_score(model, dtype, best):
    """Return such a score that is read, and compared outside of torch."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        out = model(torch.linspace(-1, 1, 64).reshape(8, 8))
    error = (out.to(dtype)[:, 0] * 0 + 0.01 * 0.9**best.steps).mean()
    best((1 - error).item())


def kept_score(model, dtype, best):
    """Return such a score that is kept, and compared when the training is over."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        out = model(torch.linspace(-1, 1, 64).reshape(8, 8))
    error = (out.to(dtype)[:, 0] * 0 + 0.01 * 0.9**best.steps).mean()
    best.kept.append(1 - error)


def hits(model, dtype, best):
    """Count by ones up to 400: in bf16 256 is as far as that comes."""
    count = torch.zeros((), dtype=dtype)
    model.eval()
    with torch.no_grad():
        for hit in (model(torch.ones(400, 8)) < torch.inf)[:, 0]:
            count += hit
    best(count.item())


@pytest.mark.parametrize(("dtype", "seen"), [(torch.bfloat16, True), (torch.float32, False)])
@pytest.mark.parametrize(
    ("evaluate", "how", "words", "best_of"),
    [
        (read_score, "reads", "which stands still in", None),
        (kept_score, "keeps", "which stands still in", None),
        (hits, "reads", "which is 36 % off", (256.0, 400.0)),
    ],
)
def test_a_score_that_is_read_in_half_precision_and_off_is_never_safe(
    evaluate, how, words, best_of, dtype, seen
):
    session, best = evaluated_often(evaluate, dtype)
    for score in best.kept:
        best(score)
    if best_of is None:
        assert (best.times < 8) is seen
    else:
        assert best.score == best_of[not seen]
    verdict = session.report("script.py").verdict
    line = inspect.getsourcelines(evaluate)[1] + len(inspect.getsourcelines(evaluate)[0]) - 1
    begins = f"the script {how} at test_evaluations.py:{line} a number in half precision, {words}"
    assert any(begins in gap for gap in verdict.coverage.gaps) is seen
    assert verdict.word is (Health.PARTLY_AUDITED if seen else Health.SAFE)


# -- models that are kept by such a score


def chosen(steps, dtype, *, improves, always, patience=99):
    """Train, and keep the model with the best score, or `always`, until none was for a while; return those."""
    torch.manual_seed(0)
    model, best, kept, bad = nn.Linear(8, 1), -float("inf"), [], 0
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(torch.randn(32, 8)).float() - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            out = model(torch.ones(4, 8))[:, 0]
        error = (out.to(dtype) * 0 + 0.01 * 0.9 ** (step if improves else min(step, 4))).mean()
        score = (1 - error).item()
        if always or score > best:
            best, state = max(best, score), model.state_dict()
            kept.append({name: one.clone() for name, one in state.items()})
            bad = -1
        bad += 1
        if bad == patience:
            break
    return kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("improves", "always", "wrong"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_best_model_that_a_score_in_half_precision_has_not_shown_is_an_error(
    improves, always, wrong, dtype
):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        kept = chosen(16, dtype, improves=improves, always=always)
    low = dtype is torch.bfloat16
    assert not session.watcher.broken, session.watcher.not_seen
    exact = 16 if always or improves else 5
    assert len(kept) < exact if low and not always else len(kept) == exact
    report = session.report("script.py")
    errors = [one for one in report.findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP510"] if wrong and low else [])
    for error in errors:
        code, first = inspect.getsourcelines(chosen)
        assert error.origin.line == first + next(n for n, text in enumerate(code) if "error = (out" in text)
    if not low:
        assert report.verdict.word is Health.SAFE
    elif improves and always:
        assert report.verdict.word is Health.PARTLY_AUDITED


def test_a_score_that_stands_still_until_the_script_stops_is_an_error():
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        kept = chosen(99, torch.bfloat16, improves=True, always=False, patience=3)
    assert len(kept) == session.watcher.steps - 3 < 40  # FP32's score improves in each
    errors = [one.code for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert errors == ["AMP510"]


def located(dtype, *, always):
    """Train to find a point near 3,000, and keep the model that comes closest, or `always`."""
    torch.manual_seed(0)
    model, best, kept = nn.Linear(8, 3), float("inf"), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    held_out = torch.randn(64, 8)
    for step in range(64):
        x = torch.randn(64, 8)
        with torch.autocast("cuda", torch.float16):
            loss = (model(x).float() - x[:, :3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                found = model(held_out).to(dtype) + 3000
                error = (found.float() - (held_out[:, :3] + 3000)).norm(dim=1).mean().item()
            if always or error < best:
                best, kept = min(best, error), kept + 1
                model.state_dict()
    return best, kept


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("always", [True, False])
def test_a_best_model_that_is_chosen_by_rounding_is_an_error(dtype, always):
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        best, kept = located(dtype, always=always)
    low = dtype is torch.float16
    assert (best > 0.5) is low  # fp16's spacing near 3,000 is 2
    assert kept == 16 or not always
    assert kept < 16 or always or not low
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == (["AMP510"] if low and not always else [])
    for error in errors:
        code, first = inspect.getsourcelines(located)
        assert error.origin.line == first + next(n for n, text in enumerate(code) if "found = model" in text)


def halved(model, x):
    """Return the score of a copy in float16, which may not hold what the model was made for."""
    copied = deepcopy(model).half().eval()
    return (copied(x.half()).float() - 1).square().mean().item()


class Centred(nn.Module):
    """Takes off a mean first."""

    def __init__(self, mean):
        super().__init__()
        self.register_buffer("mean", torch.full((8,), mean))
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x - self.mean)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mean", [98_000.0, 9_800.0])
def test_a_score_of_a_copy_whose_numbers_are_infinite_in_float16_is_an_error(mean, guard):
    torch.manual_seed(0)
    session, scores = Session(Schedule(), as_cuda=True), []
    with session.watching():
        model = Centred(mean)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for step in range(12):
            x = mean + torch.randn(32, 8)
            with torch.autocast("cuda", torch.bfloat16):
                loss = (model(x).float() - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 4 == 3:
                with guard():
                    scores.append(halved(model, x))
    assert all(map(isfinite, scores)) is (mean < 65504)
    errors = [one for one in session.report("script.py").findings if one.severity is Severity.ERROR]
    assert [one.code for one in errors] == ([] if mean < 65504 else ["AMP510"])
    for error in errors:
        assert error.origin.line == line_of(halved, "copied(x.half())")
