"""Functions that stand in for torch's are taken back from every module that bound one, and from none that did not."""

import sys
from types import ModuleType

import pytest
import torch

from ampcheck.observe import patches
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting


@pytest.fixture
def late(monkeypatch):
    """A module that is imported while the stand-in is there."""
    module = ModuleType("late")
    monkeypatch.setitem(sys.modules, "late", module)
    return module


def test_what_a_module_bound_meanwhile_is_taken_back(late):
    original = torch.clear_autocast_cache
    with cuda_casting():
        late.cleared = late.again = torch.clear_autocast_cache
        assert late.cleared is not original
    assert late.cleared is late.again is torch.clear_autocast_cache is original


def test_no_module_is_searched_for_what_nobody_holds(late, monkeypatch):
    searched = []
    monkeypatch.setattr(patches, "_is_held", lambda pair, held=patches._is_held: searched.append(held(pair)))
    with cuda_casting():
        torch.clear_autocast_cache()
    assert searched == [False]
    with cuda_casting():
        mine = torch.clear_autocast_cache  # by anything at all
    assert searched == [False, True]
    assert mine is not torch.clear_autocast_cache
