"""Weights that threads are given, train, and send in half precision to whoever averages them."""

import threading

import pytest
import torch
from code_lines import line_of
from small_fits import fits
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))


def in_half(weights, _given):
    return {name: one.to(torch.bfloat16) for name, one in weights.items()}


def in_fp32(weights, _given):
    return {name: one.clone() for name, one in weights.items()}


def what_changed(weights, given):
    return {name: (one - given[name]).to(torch.bfloat16) for name, one in weights.items()}


def averages(sends, rate, *, kept=False):
    """Let a server average what clients send after some steps; return its weights of each round."""
    torch.manual_seed(0)
    server, truth, rounds = network(), torch.randn(16, 1), []

    def client(given, box):
        model = network()
        model.load_state_dict(given)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(3):
            fits(model, optimizer, truth)
        box.append((sends(model.state_dict(), given), in_fp32(model.state_dict(), given)))

    for _ in range(12):
        given, box = in_fp32(server.state_dict(), {}), []
        for _ in range(3):
            thread = threading.Thread(target=client, args=(given, box))
            thread.start()
            thread.join()
        sent = [one[kept] for one in box]
        mean = {name: sum(one[name].float() for one in sent) / len(sent) for name in given}
        if sends is what_changed:
            mean = {name: one + mean[name] for name, one in given.items()}
        server.load_state_dict(mean)
        rounds.append(torch.cat([one.flatten() for one in mean.values()]))
    return rounds


def watched(*given, **said):
    session = Session(Schedule())
    with session.watching():
        rounds = averages(*given, **said)
    assert not session.watcher.broken, session.watcher.not_seen
    return session.report("script.py"), rounds


def moved(rounds):
    """Return the part of the weights that rounds have changed."""
    return float((rounds[-1] != rounds[0]).float().mean())


def test_what_clients_have_changed_is_lost_where_they_send_their_weights_in_half_precision():
    report, rounds = watched(in_half, 1e-4)
    assert moved(rounds) < 0.5
    assert moved(averages(in_fp32, 1e-4)) > 0.9
    (found,) = [one for one in report.findings if one.code == "AMP504"]
    assert found.origin.line == line_of(in_half, "to(torch.bfloat16)")
    assert "a weight that is sent" in found.message
    assert "send the weights in FP32" in found.fix[0]
    assert report.verdict.word is Health.UNSAFE


@pytest.mark.parametrize(
    ("sends", "rate", "kept"),
    [
        (in_fp32, 1e-4, False),
        (in_half, 1e-4, True),  # nobody goes on from what was sent in half precision
        (what_changed, 1e-4, False),
        (in_half, 0.2, False),  # what changes is larger than what is rounded away
    ],
)
def test_nothing_is_lost_where_the_changes_arrive(sends, rate, kept):
    report, rounds = watched(sends, rate, kept=kept)
    assert moved(rounds) > 0.9
    assert not [one for one in report.findings if one.code == "AMP504"]
