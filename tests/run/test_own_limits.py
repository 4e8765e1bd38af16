"""A limit that is half precision's own, by torch.finfo, and is most of a result: FP32 would have another."""

import pytest
import torch
from torch import nn

from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


def trained(limit, size, dtype=torch.float16):
    """Train with lengths of vectors that are kept above a limit; return the verdict."""
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                out = model(torch.randn(32, 8))
            with torch.no_grad():
                lengths = (size * out.detach().float()).square().sum(1).to(dtype)
                weights = 1.0 / lengths.clamp_min(limit).float()
            loss = ((weights / weights.mean())[:, None] * out.float()).square().mean()
            loss.backward()
            optimizer.step()
    return session.report("script.py").verdict


HALF, BRAIN, WIDE = (torch.finfo(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32))


@pytest.mark.parametrize(
    ("limit", "size", "dtype", "told"),
    [
        (HALF.tiny, 1e-3, torch.float16, True),
        (HALF.eps, 1e-2, torch.float16, True),
        (HALF.tiny, 1.0, torch.float16, False),
        (1e-4, 1e-3, torch.float16, False),
        (BRAIN.eps, 1e-3, torch.bfloat16, True),
        (BRAIN.tiny, 1.0, torch.bfloat16, False),
    ],
)
def test_a_limit_of_half_precision_that_decides_is_no_more_than_partly_audited(limit, size, dtype, told):
    verdict = trained(limit, size, dtype)
    assert (f"gives {limit:.4g}, a limit of" in verdict.sentence) is told
    if told:
        assert verdict.word is Health.PARTLY_AUDITED
    assert BRAIN.tiny == WIDE.tiny  # the reason why bf16's is none of its own
