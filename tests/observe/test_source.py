"""Which line is the user's."""

import sys
import weakref
from pathlib import Path

import pytest
import torch

from ampcheck.observe.source import is_user_file, locals_of, shown_path


def test_what_wraps_torchs_deprecated_functions_is_passed_over():
    wrapper = torch.cuda.amp.GradScaler.__init__.__code__.co_filename
    assert not wrapper.startswith(
        torch.__file__.removesuffix("__init__.py")
    )  # the premise: it is not torch's file
    assert not is_user_file(wrapper)


def test_a_finding_may_stand_in_a_library_and_not_in_torch():
    import transformers

    assert is_user_file(transformers.__file__)
    assert is_user_file(__file__)
    assert not is_user_file(torch.__file__)


@pytest.mark.parametrize("inside", [True, False])
def test_an_installed_file_reads_the_same_where_its_environment_lies_in_the_folder(
    monkeypatch, tmp_path, inside
):
    site = Path(torch.__file__).parents[1]
    monkeypatch.chdir(site.parents[2] if inside else tmp_path)
    assert shown_path(str(site / "torch" / "nn" / "functional.py")) == "torch/nn/functional.py"


def test_variables_that_were_looked_at_are_let_go():
    """Before Python 3.13 a frame keeps what it was asked for, and with it tensors that the script has let go."""

    def step():
        held = torch.ones(4)
        seen = weakref.ref(held)
        frame = sys._getframe()
        names = set(locals_of(frame))
        del held
        return names, seen()

    names, left = step()
    assert {"held", "seen"} <= names
    assert left is None or sys.gettrace() is not None  # as where the tests' own coverage is measured


@pytest.mark.parametrize(("begin", "now"), [(sys.settrace, sys.gettrace), (sys.setprofile, sys.getprofile)])
def test_variables_stay_where_a_debugger_or_a_profiler_runs(begin, now):
    """Python writes what `f_locals` holds back into the variables, behind the function of a debugger."""

    def adds():
        one, other = 1, 2
        return one + other

    def looks(frame, *_):
        if frame.f_code is adds.__code__:
            locals_of(frame)
        return looks

    before = now()
    begin(looks)
    try:
        assert adds() == 3
    finally:
        begin(before)


def test_what_the_script_itself_has_of_its_variables_stays():
    def step(number):
        mine = locals()
        locals_of(sys._getframe())
        return mine["number"]

    assert step(3) == 3
