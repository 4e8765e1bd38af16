"""Rounds of training from weights that travel in half precision by other ways than torch's operations."""

import pickle

import numpy as np
import pytest
import torch
from code_lines import line_of
from small_fits import fits, network

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health

ROUNDS = 120


def by_arrays(weights, dtype, _):
    kind = np.float32 if dtype is torch.float32 else np.float16
    sent = {name: held.numpy().astype(kind) for name, held in weights.items()}
    return {name: torch.from_numpy(held.astype(np.float32)) for name, held in sent.items()}


def by_file(weights, dtype, folder):
    torch.save({name: held.to(dtype) for name, held in weights.items()}, folder / "weights.pt")
    return torch.load(folder / "weights.pt")


def by_bytes(weights, dtype, _):
    return pickle.loads(pickle.dumps({name: held.to(dtype) for name, held in weights.items()}))


def rounds(carry, dtype, rate, folder, *, masters=False, resets=False, fresh=False):
    """Let two clients train from the server's weights, and return how far those go, or its masters.

    With `resets` training begins from the first weights each time, with `fresh` one new client trains in each round.
    """
    torch.manual_seed(0)
    truth, models = torch.randn(8, 1), [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), rate) for model in models]
    first = {name: held.detach().clone() for name, held in network().state_dict().items()}
    served = {name: held.to(dtype).float() for name, held in first.items()}
    kept = {name: held.clone() for name, held in served.items()}
    for _ in range(ROUNDS):
        given = carry(first if resets else kept if masters else served, dtype, folder)
        answers = []
        if fresh:
            models = [network()]
            optimizers = [torch.optim.SGD(model.parameters(), rate) for model in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            model.load_state_dict(given)
            fits(model, optimizer, truth)
            answers.append({name: held.detach().clone() for name, held in model.state_dict().items()})
        mean = {name: torch.stack([one[name] for one in answers]).mean(0) for name in first}
        served = {name: held.to(dtype).float() for name, held in mean.items()}
        kept = {name: held + mean[name] - given[name].float() for name, held in kept.items()}
    ends = kept if masters else served
    return torch.cat([(ends[name] - first[name]).flatten() for name in first])


def watched(*given, **said):
    session = Session(Schedule())
    with session.watching():
        rounds(*given, **said)
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


def short(*given, **said):
    """Return the part of what FP32 changes that half precision changes by less than half as much, by plain torch."""
    carry, _, rate, folder = given
    wide, low = rounds(carry, torch.float32, rate, folder, **said), rounds(*given, **said)
    return float((low * wide.sign() < 0.5 * wide.abs()).float().mean())


@pytest.mark.parametrize(
    ("carry", "fresh"), [(by_arrays, False), (by_arrays, True), (by_file, False), (by_bytes, True)]
)
def test_what_each_round_loses_on_its_way_is_lost(carry, fresh, tmp_path):
    assert short(carry, torch.float16, 5e-5, tmp_path, fresh=fresh) > 0.6
    report, errors = watched(carry, torch.float16, 5e-5, tmp_path, fresh=fresh)
    assert report.verdict.word is Health.UNSAFE
    assert errors[0].code == "AMP504"
    assert errors[0].origin.line == line_of(rounds, "model.load_state_dict(given)")


@pytest.mark.parametrize(
    ("dtype", "rate", "said"),
    [
        (torch.float32, 5e-5, {}),
        (torch.float16, 3e-3, {}),  # each round is more than rounding takes away
        (torch.float16, 5e-5, {"masters": True}),
    ],
)
def test_what_arrives_is_safe(dtype, rate, said, tmp_path):
    assert short(by_arrays, dtype, rate, tmp_path, **said) < 0.2
    report, errors = watched(by_arrays, dtype, rate, tmp_path, **said)
    assert not errors
    assert not any("again and again" in gap for gap in report.verdict.coverage.gaps)


def test_few_rounds_are_not_judged(monkeypatch, tmp_path):
    """FP32 has not gone far after them: nobody knows whether half precision will."""
    monkeypatch.setitem(globals(), "ROUNDS", 6)
    report, errors = watched(by_arrays, torch.float16, 5e-5, tmp_path)
    assert not errors
    assert any("again and again" in gap for gap in report.verdict.coverage.gaps)
    assert report.verdict.word is Health.PARTLY_AUDITED


def test_training_from_the_same_weights_again_is_no_round(tmp_path):
    report, errors = watched(by_file, torch.float16, 1e-3, tmp_path, resets=True)
    assert not errors
    assert not any("again and again" in gap for gap in report.verdict.coverage.gaps)


def test_a_weight_that_comes_back_rounded_beside_others_that_do_not_is_never_safe():
    torch.manual_seed(0)
    model, truth = network(), torch.randn(8, 1)
    optimizer, session = torch.optim.SGD(model.parameters(), 1e-3), Session(Schedule())
    with session.watching():
        for _ in range(20):
            fits(model, optimizer, truth)
            held = model[0].weight.detach().numpy().astype(np.float16)
            with torch.no_grad():
                model[0].weight.copy_(torch.from_numpy(held.astype(np.float32)))
    assert not session.watcher.broken, session.watcher.not_seen
    assert session.report("script.py").verdict.word is not Health.SAFE
