"""Functions that stand in for torch's are taken back from every module that bound one, and from none that did not."""

import inspect
import sys
from types import FunctionType, ModuleType

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


class Base:
    def value(self, by=1, *, more=0):
        return by + more


class Derived(Base):
    def value(self, by=2, *, more=0):
        return super().value(by, more=more)


@pytest.mark.parametrize(("kind", "alone"), [(Base, 1), (Derived, 2)])
def test_a_method_that_was_bound_before_is_replaced_as_well_until_it_is_put_back(kind, alone):
    early, signature = kind().value, inspect.signature(kind.value)
    before = kind.value.__code__, kind.value.__kwdefaults__, vars(kind)["value"]
    replaced = patches.Patches()
    replaced.put_under_all_names(
        kind, "value", lambda original, *args, **more: ("heard", original(*args, **more))
    )
    assert early() == kind().value() == ("heard", alone)
    assert early(5, more=2) == ("heard", 7)
    assert inspect.signature(kind.value) == signature
    with replaced.paused():
        assert early() == alone
    assert early() == ("heard", alone)
    replaced.restore()
    assert early() == alone
    assert (kind.value.__code__, kind.value.__kwdefaults__, vars(kind)["value"]) == before
    assert not vars(kind.value)


def test_a_function_that_is_copied_while_it_is_replaced_does_what_it_does():
    """A script may copy a function of torch's, and read its signature."""

    class Owner:
        def add(self, one: int, two: int = 2) -> int:
            """Add."""
            return one + two

    called, before = [], inspect.signature(Owner.add)
    done = patches.Patches()
    done.put_under_all_names(Owner, "add", lambda original, *args: called.append(args) or original(*args))
    held = Owner.add
    copy = FunctionType(held.__code__, held.__globals__, held.__name__, held.__defaults__, held.__closure__)
    assert (Owner().add(1), copy(Owner(), 1), inspect.signature(Owner.add)) == (3, 3, before)
    assert len(called) == 2
    done.restore()
    assert (Owner().add(1), len(called)) == (3, 2)
