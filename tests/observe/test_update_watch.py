"""Updates of half-precision weights in a watched loop: FP32's step beside the optimizer's, which stays as it is."""

import queue
import threading

import pytest
import torch
from torch import nn

import ampcheck
from ampcheck.observe.script.state.update_watch import UpdateWatch
from ampcheck.values.verdict import Health

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, eps=1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, centered=True, eps=1e-4),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2, eps=1e-4),
    "Rprop": lambda p: torch.optim.Rprop(p, 1e-2),
}


def train(make, dtype=torch.bfloat16, steps=4, rates=(), by=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
    optimizer = make(model.parameters())
    torch.manual_seed(1)
    for step in range(steps):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[step]
        (by * model(torch.randn(6, 8).to(dtype)).float().square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp32s_step_is_the_one_that_the_optimizer_takes_on_fp32_weights(name):
    torch.manual_seed(0)
    low = nn.Linear(8, 4).bfloat16()
    optimizer = OPTIMIZERS[name](low.parameters())
    watch = UpdateWatch(lambda parameter: ("", str(tuple(parameter.shape))))
    for parameter in low.parameters():
        parameter.grad = torch.randn(parameter.shape).bfloat16()
    optimizer.step()  # there is a state
    wide = nn.Linear(8, 4)
    wide.load_state_dict({key: value.float() for key, value in low.state_dict().items()})
    witness = OPTIMIZERS[name](wide.parameters())
    held = optimizer.state_dict()
    state = {
        key: {k: v.float().clone() if isinstance(v, torch.Tensor) else v for k, v in of.items()}
        for key, of in held["state"].items()
    }
    witness.load_state_dict({"state": state, "param_groups": held["param_groups"]})
    for mine, theirs in zip(low.parameters(), wide.parameters(), strict=True):
        theirs.grad = mine.grad.float()
    before = [parameter.detach().clone() for parameter in low.parameters()]
    watch.begins("optimizer 1", optimizer, low.parameters())
    ((_, steps, _),) = watch._tried.values()
    taken = [after for _, _, after in steps]
    assert all(torch.equal(a, b) for a, b in zip(before, low.parameters(), strict=True))
    witness.step()
    assert all(torch.equal(a, b) for a, b in zip(taken, wide.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_over_half_precision_weights_goes_on_bit_for_bit(name):
    bare = train(OPTIMIZERS[name])
    with ampcheck.watch():
        watched = train(OPTIMIZERS[name])
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))


def codes(make, **how):
    with ampcheck.watch() as watching:
        train(make, **how)
    report = watching.report()
    return [finding.code for finding in report.findings if finding.severity == "error"], report


def test_weights_that_do_not_move_are_an_error_and_those_that_move_are_none():
    found, report = codes(lambda p: torch.optim.SGD(p, 1e-5))
    assert found == ["AMP504"]
    assert report.verdict.word is Health.UNSAFE
    assert codes(lambda p: torch.optim.SGD(p, 1.0))[0] == []


def test_weights_that_become_nan_are_an_error():
    assert codes(lambda p: torch.optim.Adam(p, 1e-3), dtype=torch.float16, by=1e-3)[0] == ["AMP504"]


def test_a_warm_up_is_judged_where_it_ends():
    rates = (0.0, 1e-6, 1e-5, 1.0, 1e-6)
    assert codes(lambda p: torch.optim.SGD(p, 1.0), steps=5, rates=rates)[0] == []


@pytest.mark.parametrize(("last", "safe"), [(0.4, True), (1e-5, False)])
def test_a_rate_that_falls_until_most_changes_are_lost_is_no_error_and_not_called_safe(last, safe):
    rates = (1.0, 1.0, last, last)
    before = train(lambda p: torch.optim.SGD(p, 1.0), steps=2, rates=rates)
    after = train(lambda p: torch.optim.SGD(p, 1.0), steps=3, rates=rates)
    kept = sum(int((one != was).sum()) for one, was in zip(after, before, strict=True))
    assert (2 * kept > sum(one.numel() for one in before)) == safe
    found, report = codes(lambda p: torch.optim.SGD(p, 1.0), rates=rates)
    assert found == []
    assert ("does not move" in report.verdict.sentence or "do not move" in report.verdict.sentence) != safe
    assert (report.verdict.word is Health.PARTLY_AUDITED) != safe


def test_what_an_optimizer_of_someones_own_does_is_not_called_safe():
    class Own(torch.optim.SGD):
        """May compensate, may send messages: it is not asked twice."""

    found, report = codes(lambda p: Own(p, 1e-5))
    assert found == []
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "Own" in report.verdict.sentence


def served(dtype, rate):
    """Train a model whose weights a thread keeps and updates; return them as they are after the first update."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    kept = [nn.Parameter(weight.detach().to(dtype)) for weight in model.parameters()]
    optimizer, wire, back, seen = torch.optim.SGD(kept, rate), queue.Queue(), queue.Queue(), []

    def serve():
        while (grads := wire.get()) is not None:
            for weight, grad in zip(kept, grads, strict=True):
                weight.grad = grad.to(dtype)
            before = [weight.detach().clone() for weight in kept]
            optimizer.step()
            seen.append((before, [weight.detach().clone() for weight in kept]))
            back.put(None)

    thread = threading.Thread(target=serve)
    thread.start()
    for _ in range(4):
        with torch.no_grad():
            for weight, mine in zip(model.parameters(), kept, strict=True):
                weight.copy_(mine)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(16, 8)).float().square().mean()
        wire.put(torch.autograd.grad(loss, list(model.parameters())))
        back.get()
    wire.put(None)
    thread.join()
    return seen


@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.bfloat16, 1e-3), (torch.bfloat16, 0.5), (torch.float32, 1e-3)]
)
def test_weights_that_a_thread_of_the_scripts_updates_are_compared_with_fp32s_too(dtype, rate):
    bare = served(dtype, rate)
    stuck = [torch.equal(a, b) for before, after in bare for a, b in zip(before, after, strict=True)]
    kept = sum(int((a == b).sum()) for before, after in bare for a, b in zip(before, after, strict=True))
    lost = kept > 0.5 * 4 * (32 + 4)
    assert lost is (dtype is torch.bfloat16 and rate < 0.1)
    with ampcheck.watch() as watching:
        watched = served(dtype, rate)
    assert stuck == [
        torch.equal(a, b) for before, after in watched for a, b in zip(before, after, strict=True)
    ]
    found = [finding.code for finding in watching.report().findings]
    assert found == ["AMP504"] * lost
