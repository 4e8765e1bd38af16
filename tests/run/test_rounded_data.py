"""Numbers that a data set holds in half precision and casts up: no batch shows what rounding has lost."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from ampcheck.observe.script.data_sets import ROUNDED_DATA, cast_up
from ampcheck.observe.statistics.units import is_grid
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule
from ampcheck.values.verdict import Health


class Differences(Dataset):
    """Differences of stored levels, which are what a model is given."""

    def __init__(self, levels):
        self.levels = levels

    def __len__(self):
        return 64

    def __getitem__(self, at):
        row = torch.as_tensor(self.levels[at]).float()
        return row - row[0], row[1:3] - row[0]


def audit(data, workers=0):
    torch.manual_seed(0)
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        for x, y in DataLoader(data, batch_size=16, num_workers=workers):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(x.float()).float(), y.float())
            loss.backward()
            optimizer.step()
    return session.report("script.py")


LEVELS = 300 + torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
HALF = [LEVELS.half(), LEVELS.bfloat16() / 3, LEVELS.numpy().astype(np.float16), list(LEVELS.half())]


@pytest.mark.parametrize("levels", HALF)
def test_levels_that_were_stored_in_half_precision_are_named(levels):
    report = audit(Subset(Differences(levels), range(64)))
    if levels is HALF[1]:  # its steps of a half are as large as the differences
        assert {one.code for one in report.findings} == {"AMP509"}
        return
    assert report.verdict.word is Health.PARTLY_AUDITED
    assert "Subset.dataset.levels" in report.verdict.sentence
    assert ROUNDED_DATA in report.verdict.sentence


def test_so_are_those_that_workers_cast_up():
    assert audit(Differences(LEVELS.half()), workers=1).verdict.word is Health.PARTLY_AUDITED


EXACT = [
    LEVELS,
    LEVELS.round().remainder(256).half(),
    LEVELS.round().remainder(2).half() / 4,
    np.tile(np.arange(8, dtype=np.float16), (64, 1)),
]


@pytest.mark.parametrize("levels", EXACT)
def test_codes_and_counts_are_exact_in_half_precision_too(levels):
    assert audit(Differences(levels)).verdict.word is Health.SAFE


def test_of_a_file_as_large_as_a_disk_only_its_beginning_is_read(tmp_path, monkeypatch):
    held = np.memmap(tmp_path / "levels", np.float16, "w+", shape=(40_000, 8))
    held[:64] = LEVELS.numpy()
    held[64:] = 0
    report = audit(Differences(held))
    assert "Differences.levels" in report.verdict.sentence
    read = []
    monkeypatch.setattr(np.memmap, "flat", property(lambda array: _Noted(np.asarray(array).flat, read)))
    cast_up(Differences(held), [LEVELS])
    assert read
    assert max(at.stop for at in read) <= 4096


class _Noted:
    """Numbers of an array that note which are read."""

    def __init__(self, flat, read):
        self.flat, self.read = flat, read

    def __getitem__(self, at):
        self.read.append(at)
        return self.flat[at]


def test_what_stays_in_half_precision_is_seen_in_the_step():
    report = audit(TensorDataset(LEVELS.half() - 300, LEVELS[:, :2] - 300))
    assert not any(what.endswith(ROUNDED_DATA) for what in report.not_audited)


@pytest.mark.parametrize(("number", "bits"), [(1.0, 1), (3.0, 2), (255.0, 8), (0.15625, 3), (-511.0, 9)])
def test_a_grid_is_measured_in_bits(number, bits):
    held = torch.tensor([number, 2.0 * number, 0.0])
    assert is_grid(held, bits + 1)
    assert not is_grid(held, bits)
    assert is_grid(torch.tensor([number]), bits)
    assert is_grid(torch.tensor([number * 2.0**-20]), bits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_multiples_of_the_smallest_number_are_no_grid_rounding_leaves_nothing_else(dtype):
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    rounded = (smallest * torch.tensor([0.3, 1.2, 2.7], dtype=torch.float64)).to(dtype)
    assert torch.equal(rounded.double(), smallest * torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64))
    assert not is_grid(rounded, 7)
    assert is_grid(2 * rounded, 7)
    assert is_grid(torch.zeros(3, dtype=dtype), 7)
