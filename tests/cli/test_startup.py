"""What is loaded when nothing needs to be computed: asserted by name, never timed."""

from pathlib import Path

import pytest
from examples import gradient_underflow
from startup_modules import loaded_by

from ampcheck.saved.report_json import to_json

HEAVY = ("torch", "numpy", "pandas", "torchvision", "timm", "transformers")


#: Says last what has been loaded, however the statement before ended.
def test_the_witness_sees_what_is_loaded():
    _, names, _ = loaded_by("import numpy, rich")
    assert {"numpy", "rich"} <= names


def test_import_loads_no_torch_and_no_rich():
    _, names, _ = loaded_by("import ampcheck")
    assert "ampcheck" in names
    assert names.isdisjoint((*HEAVY, "rich"))


@pytest.mark.parametrize("words", [["--help"], ["check", "--help"], ["show", "--help"], ["explain"]])
def test_help_loads_no_torch_and_no_rich(words):
    status, names, printed = loaded_by(f"from ampcheck.cli import main; sys.exit(main({words}))")
    assert status == 0
    assert "ampcheck" in printed or "AMP" in printed
    assert names.isdisjoint((*HEAVY, "rich"))


def test_a_wrong_target_is_refused_before_torch_is_loaded():
    status, names, _ = loaded_by("from ampcheck.cli import main; sys.exit(main(['no_such_file.py']))")
    assert status == 2
    assert names.isdisjoint(HEAVY)


@pytest.mark.parametrize("form", ["terminal", "json"])
def test_show_needs_no_torch(tmp_path: Path, form: str):
    saved = tmp_path / "report.json"
    example = gradient_underflow()
    saved.write_text(to_json(example), encoding="utf-8")
    words = ["show", str(saved), "--format", form, "--fail-on", "never"]
    status, names, printed = loaded_by(f"from ampcheck.cli import main; sys.exit(main({words}))")
    assert status == 0
    assert example.target in printed
    assert names.isdisjoint(HEAVY)
