"""How far apart what FP32 leaves behind and what a step leaves behind are, also in buffers of many parts."""

import numpy as np
import pytest
import torch

from ampcheck.observe.model import held


@pytest.mark.parametrize("part", [7, 10, 1 << 22])
def test_it_is_numpys_relative_distance_in_any_number_of_parts(monkeypatch, part):
    monkeypatch.setattr(held, "_PART", part)
    torch.manual_seed(0)
    wide = torch.randn(5, 6).t()
    low = wide.half()
    expected = np.linalg.norm(low.double() - wide.double()) / np.linalg.norm(wide.double())
    assert held.apart(wide, low) == pytest.approx(expected, rel=1e-12)
    ill, also = wide.clone(), low.clone()
    ill[5, 4], also[5, 4] = float("inf"), float("nan")
    assert held.apart(ill, also) < 1e-3  # FP32 has no number there either
    assert held.apart(wide, also) == float("inf")
    assert held.apart(torch.zeros(20), torch.zeros(20)) == 0.0
    assert held.apart(torch.zeros(20), torch.ones(20)) == 1.0
    assert held.apart(wide, low.t()) == 0.0  # another shape: something else stands in its place


def test_a_large_buffer_takes_little_more_while_it_is_compared():
    resource = pytest.importorskip("resource", reason="there is no resource module on Windows")
    size = 1 << 26
    wide, low = torch.ones(size), torch.ones(size, dtype=torch.float16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert held.apart(wide, low) == 0.0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < size * 8  # one copy in double would be as large
