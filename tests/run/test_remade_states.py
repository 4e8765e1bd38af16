"""States in half precision that a script makes anew from what they were, and does not write in place."""

import pytest
import torch
from code_lines import line_of
from small_fits import fits, network

from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def averaged(dtype, decay):
    """Keep an average of weights in a dict that is made anew after each step."""
    torch.manual_seed(0)
    model, truth = network(), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    mean = {name: held.detach().to(dtype) for name, held in model.state_dict().items()}
    for _ in range(80):
        fits(model, optimizer, truth)
        with torch.no_grad():
            mean = {
                name: (decay * mean[name].float() + (1 - decay) * held).to(dtype)
                for name, held in model.state_dict().items()
            }
    return torch.cat([one.flatten().float() for one in mean.values()])


def served(dtype, rate):
    """Let a server's weights be the mean of what two clients have made of them."""
    torch.manual_seed(0)
    clients, truth = [network(), network()], torch.randn(8, 1)
    served = {name: held.detach().to(dtype) for name, held in network().state_dict().items()}
    for _ in range(40):
        answers = []
        for client in clients:
            client.load_state_dict({name: held.float() for name, held in served.items()})
            optimizer = torch.optim.SGD(client.parameters(), rate)
            for _ in range(2):
                fits(client, optimizer, truth)
            answers.append({name: held.detach().clone() for name, held in client.state_dict().items()})
        served = {name: (sum(one[name] for one in answers) / 2).to(dtype) for name in served}
    return torch.cat([one.flatten().float() for one in served.values()])


def with_masters(dtype, rate):
    """Send weights in half precision that a server keeps in FP32, and add to those what clients have changed."""
    torch.manual_seed(0)
    client, truth = network(), torch.randn(8, 1)
    masters = {name: held.detach().clone() for name, held in network().state_dict().items()}
    for _ in range(60):
        sent = {name: held.to(dtype) for name, held in masters.items()}
        client.load_state_dict({name: held.float() for name, held in sent.items()})
        optimizer = torch.optim.SGD(client.parameters(), rate)
        for _ in range(2):
            fits(client, optimizer, truth)
        for name, held in client.state_dict().items():
            masters[name] += held.detach() - sent[name].float()
    return torch.cat([one.flatten() for one in masters.values()])


def short(run, dtype, number):
    """Return the part of what FP32 changes that half precision changes by less than half as much."""
    first = run(torch.float32, 1.0 if run is averaged else 0.0)
    wide, low = (run(one, number) - first for one in (torch.float32, dtype))
    return float((low * wide.sign() < 0.5 * wide.abs()).float().mean())


def watched(run, dtype, number):
    session = Session(Schedule())
    with session.watching():
        run(dtype, number)
    assert not session.watcher.broken, session.watcher.not_seen
    report = session.report("script.py")
    return report, [one for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("run", "number", "line"), [(averaged, 0.999, "mean[name].float()"), (served, 3e-4, "sum(one[name]")]
)
def test_changes_that_rounding_takes_away_are_lost_where_the_state_is_made_anew(run, number, line):
    assert short(run, torch.bfloat16, number) > 0.6
    report, errors = watched(run, torch.bfloat16, number)
    assert report.verdict.word is Health.UNSAFE
    assert errors[0].code == "AMP504"
    assert errors[0].origin.line == line_of(run, line)
    assert str(line_of(run, line)) in errors[0].fix[0]  # where it is cast again, beside where it is made


@pytest.mark.parametrize(
    ("run", "dtype", "number"),
    [
        (averaged, torch.float32, 0.999),
        (averaged, torch.bfloat16, 0.5),  # follows quickly
        (served, torch.float32, 3e-4),
        (served, torch.bfloat16, 0.05),
        (with_masters, torch.bfloat16, 3e-4),
    ],
)
def test_changes_that_arrive_are_no_error(run, dtype, number):
    assert short(run, dtype, number) < 0.3
    report, errors = watched(run, dtype, number)
    assert not errors
    assert report.verdict.word is (Health.SAFE if dtype is torch.float32 else report.verdict.word)
