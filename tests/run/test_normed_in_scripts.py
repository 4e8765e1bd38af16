"""A script with batch norms: what they save for their backward is no result, and no error of theirs."""

import contextlib

import pytest
import torch
from torch import nn

from ampcheck.diagnose.tables import layer_rows
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health

NORMS = ("model.1", "model.3")  # as a session names what a variable holds


def made():
    torch.manual_seed(0)
    first, second = (nn.Conv2d(width, 12, 1, bias=False) for width in (3, 12))
    norms = nn.BatchNorm2d(12), nn.BatchNorm2d(12)
    return nn.Sequential(first, norms[0], second, norms[1], nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 4))


def trained(watched):
    """Train three steps; return the weights and the running statistics."""
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    torch.manual_seed(1)
    with watched:
        for _ in range(3):
            x, y = torch.randn(16, 3, 6, 6), torch.randint(0, 4, (16,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return list(model.state_dict().values())


def errors_by_torch():
    """Return how far each norm's result in the first step lies from FP32's, as torch's own hooks hold both."""
    results = []
    for low in (False, True):
        model, found = made(), {}
        for name in NORMS:
            module = model.get_submodule(name.removeprefix("model."))
            module.register_forward_hook(
                lambda _, __, out, at=name, found=found: found.update({at: out.detach().float()})
            )
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            model(torch.randn(16, 3, 6, 6))
        results.append(found)
    wide, narrow = results
    return {name: float((narrow[name] - wide[name]).norm() / wide[name].norm()) for name in NORMS}


def test_the_error_of_a_batch_norm_in_a_script_is_that_of_its_result():
    session = Session(Schedule())
    seen = trained(session.watching())
    report = session.report("script.py")
    norms = [s for s in report.errors if "batch_norm" in s.op and s.phase is Phase.FORWARD]
    assert sorted((site.module, site.slot) for site in norms) == [(name, "output[0]") for name in NORMS]
    by_torch = errors_by_torch()
    assert all(0 < error < 0.05 for error in by_torch.values())
    told = {site.module: report.errors[site].relative_rms for site in norms}
    assert told == pytest.approx(by_torch, rel=0.3)
    rows = {row.module: row.error for row in layer_rows(report)}
    assert {name: rows[name] for name in NORMS} == told
    assert report.verdict.word is Health.SAFE
    assert not report.findings
    assert all(map(torch.equal, trained(contextlib.nullcontext()), seen))
