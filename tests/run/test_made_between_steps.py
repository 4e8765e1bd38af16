"""Numbers in half precision that a script makes between its steps, and computes with from then on."""

import pytest
import torch
from code_lines import line_of
from torch import nn

import ampcheck
from ampcheck.values.findings import Severity
from ampcheck.values.verdict import Health

LAMBDA = 1e8


def importances(model, dtype):
    """Return mean squares of gradients, as elastic weight consolidation takes them after each task."""
    found = {name: torch.zeros_like(held, dtype=dtype) for name, held in model.named_parameters()}
    for _ in range(16):
        model.zero_grad()
        x = torch.randn(64, 32)
        (nn.functional.mse_loss(model(x), x[:, :4].tanh()) / 50).backward()
        for name, held in model.named_parameters():
            gradient = held.grad.to(dtype)
            found[name] += gradient * gradient / 16
    model.zero_grad()
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_sums_of_squares_that_underflow_are_no_exact_numbers(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer, tasks = torch.optim.SGD(model.parameters(), 0.05), []
    with ampcheck.watch(model, optimizer) as watching:
        for task in range(3):
            for _ in range(60):
                optimizer.zero_grad()
                x = torch.randn(64, 32)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.mse_loss(model(x).float(), (1 + 0.1 * task) * x[:, :4].tanh())
                for squares, anchor in tasks:
                    for name, held in model.named_parameters():
                        loss = loss + LAMBDA * (squares[name].float() * (held - anchor[name]) ** 2).sum()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            state = torch.get_rng_state()
            squares = importances(model, dtype)
            torch.set_rng_state(state)
            exact = importances(model, torch.float64)
            tasks.append((squares, {name: held.detach().clone() for name, held in model.named_parameters()}))
    gone = sum(int(((squares[name] == 0) & (exact[name] != 0)).sum()) for name in squares)
    errors = [one.code for one in watching.report().findings if one.severity is Severity.ERROR]
    if dtype is torch.float16:
        assert gone > 100
        assert errors == ["AMP504", "AMP509"]  # where they are added up, and what the penalty makes of them
    else:
        assert not gone
        assert watching.report().verdict.word is Health.SAFE


def drawn(priorities, size):
    """Return elements drawn as often as their priorities say."""
    ends = priorities[:size].cumsum(0)
    return torch.searchsorted(ends.float(), torch.rand(32) * ends[-1]).clamp(max=size - 1)


@pytest.mark.parametrize(
    ("begins", "dtype"), [(70, torch.float16), (130, torch.float16), (70, torch.float32)]
)
def test_a_sum_that_overflows_late_is_seen_though_no_module_was_called_yet(begins, dtype):
    torch.manual_seed(0)
    model, finite = nn.Linear(8, 4), []
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    priorities = torch.zeros(20_000, dtype=dtype)
    memory = torch.randn(20_000, 8)
    with ampcheck.watch(model, optimizer) as watching:
        for step in range(230):
            size = 80 * (step + 1)
            priorities[size - 80 : size] = 65_000.0 / 80 / begins * (1 + 0.01 * torch.randn(80))
            finite.append(sum(priorities.tolist()) < 65_520)
            x = memory[drawn(priorities, size)]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
    report = watching.report()
    found = [one for one in report.findings if one.code == "AMP101"]
    if dtype is torch.float32:
        assert not found
        return
    assert begins - 20 < finite.index(False) < begins + 20
    assert found[0].origin.line == line_of(drawn, "cumsum")
    assert "overflows fp16" in found[0].message  # which the script holds, beside a step in bf16
    assert report.verdict.word is not Health.SAFE
