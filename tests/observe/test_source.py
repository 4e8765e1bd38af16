"""Which line is the user's."""

from pathlib import Path

import pytest
import torch

from ampcheck.observe.source import is_user_file, shown_path


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
