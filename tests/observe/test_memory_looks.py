"""A look through memory holds nothing that another thread is still filling: that would break the thread."""

import gc
import sys
import threading
from collections.abc import Callable
from time import monotonic

import pytest
import torch
from torch import nn

from ampcheck.observe.native import NATIVE
from ampcheck.observe.statistics import memory

SECONDS = 1.5


def broken_threads(look: Callable[[], object]) -> int:
    """Return how many tuples could not be filled by threads, while another looks through memory."""
    ends, failed, before = threading.Event(), [], sys.getswitchinterval()

    def fills():
        while not ends.is_set():
            try:
                tuple(kind for kind in [torch.Tensor] * 400)
            except SystemError as error:
                failed.append(error)

    threads = [threading.Thread(target=fills) for _ in range(2)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        until = monotonic() + SECONDS
        while monotonic() < until:
            look()
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    return len(failed)


def test_a_look_that_keeps_what_it_finds_breaks_them():  # the witness: this is what the others are not
    assert broken_threads(lambda: [one for one in gc.get_referrers(torch.Tensor) if one is None])


@pytest.mark.parametrize("native", [pytest.param(NATIVE, id="compiled"), pytest.param(None, id="python")])
@pytest.mark.parametrize(
    "look",
    [lambda: memory.instances(torch.Tensor, nn.Parameter), lambda: memory.instances_of(nn.Module)],
    ids=["instances", "instances_of"],
)
def test_a_look_of_ours_does_not(look, native, monkeypatch):
    monkeypatch.setattr(memory, "NATIVE", native)
    assert broken_threads(look) == 0


@pytest.mark.parametrize("native", [pytest.param(NATIVE, id="compiled"), pytest.param(None, id="python")])
def test_what_is_found_is_what_all_objects_have(native, monkeypatch):
    monkeypatch.setattr(memory, "NATIVE", native)
    kept = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), torch.zeros(3)
    every = gc.get_objects()
    assert {id(one) for one in every if issubclass(type(one), nn.Module)} == {
        id(one) for one in memory.instances_of(nn.Module)
    }
    tensors = {id(one) for one in memory.instances(torch.Tensor, nn.Parameter)}
    assert {id(one) for one in every if type(one) in {torch.Tensor, nn.Parameter}} == tensors
    assert id(kept[1]) in tensors
