"""Random tensors and module calls through the compiled path, held against torch's own counts.

Run by itself: fuzz_native.py SECONDS [SEED]. It is run under sanitizers,
which tell of what is read or written outside of its memory.
"""

import random
import sys
import time

import torch
from torch import nn

from ampcheck.observe.recorder import Recorder
from ampcheck.observe.statistics.measure import RECORD_WORDS, Arena
from ampcheck.observe.unusual import in_memory

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ZEROS, _INFS, _NANS = 256, 257, 258


def tensor_of(rng):
    """Return a tensor of any size, with gaps, offsets, repeats and odd values."""
    dtype = rng.choice(DTYPES)
    shape = [rng.choice((0, 1, 2, 3, 7, 64, 65, 130)) for _ in range(rng.randrange(4))]
    if rng.random() < 0.02:
        shape = [rng.choice((70_000, 600_000))]
    made = (torch.randn([size + 2 for size in shape]) * 2.0 ** rng.randrange(-40, 40)).to(dtype)
    flat = made.view(-1)
    for value in (0.0, float("inf"), float("nan"), -0.0, 1e-45):
        if flat.numel() and rng.random() < 0.4:
            flat[rng.randrange(flat.numel())] = value
    for dim, size in enumerate(shape):
        made = made.narrow(dim, rng.randrange(3), size)
    if made.dim() > 1 and rng.random() < 0.4:
        made = made.transpose(*rng.sample(range(made.dim()), 2))
    if made.dim() and rng.random() < 0.3:
        made = made.contiguous()
    if made.dim() and made.shape[-1] and rng.random() < 0.1:
        made = made[..., :1].expand(*made.shape[:-1], rng.randrange(9))
    return made


def measured(tensor):
    arena = Arena("cpu")
    row = arena.row()
    arena.add(row, tensor)
    return arena.read()[row]


def check_numbers(tensor):
    """Hold a record against what torch counts."""
    record = measured(tensor)
    assert record.shape == (RECORD_WORDS,)
    assert record[_ZEROS] == (tensor == 0).sum()
    assert record[_INFS] == tensor.isinf().sum()
    assert record[_NANS] == tensor.isnan().sum()
    assert record[: _NANS + 1].sum() == tensor.numel()
    k = 5
    sample = Arena("cpu").sample(tensor, k)
    assert sample.numel() == min(k, tensor.numel())
    held = tensor.double().reshape(-1)
    assert all(torch.isnan(one) or (held == one).any() for one in sample)


class Passing(nn.Module):
    """Hands its arguments on, some of them gone by then."""

    def __init__(self, rng):
        super().__init__()
        self.inner, self.linear, self.rng = nn.Identity(), nn.Linear(3, 3), rng

    def forward(self, *values, extra=None):
        for value in values:
            if self.rng.random() < 0.2:
                base = torch.randn(64)
                view = base[self.rng.randrange(60) :]
                base.untyped_storage().resize_(self.rng.randrange(260))
                self.inner(view)
            self.inner(value)
        out = self.linear(torch.randn(2, 3))
        return [out, *values][: self.rng.randrange(1, 4)], {"extra": extra}


def numbers(stats):
    return stats.counts, stats.lowest, stats.zeros, stats.infs, stats.nans, stats.amax


def check_modules(rng):
    """Record calls with everything in them; what the compiled path says is what Python says."""
    values = [tensor_of(rng) for _ in range(rng.randrange(4))]
    seed, counts = rng.randrange(1 << 30), []
    for compiled in (True, False):
        torch.manual_seed(seed)
        model = Passing(random.Random(seed))
        recorder = Recorder(model, compiled=compiled)
        with recorder:
            model(*values, extra=values[:1])
        trace = recorder.trace(recorder.fetch())
        found = {site: numbers(stats) for site, stats in trace.sites.items()}
        counts.append((found, dict(trace.not_audited)))
    assert counts[0] == counts[1]


def main(seconds, seed=0):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    end, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        made = tensor_of(rng)
        assert in_memory(made)
        check_numbers(made)
        if rounds % 4 == 0:
            check_modules(rng)
        rounds += 1
    print("rounds", rounds)


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:]))
