"""[tool.ampcheck] and the command line: one set of names, the command line wins, what is wrong is said."""

import argparse
import json
from dataclasses import fields
from pathlib import Path

import pytest
from builders import finding, report
from examples import cnn, forward_overflow

from ampcheck.cli import _parser, main
from ampcheck.compare.config import NAMES, Config, find, key
from ampcheck.errors import ConfigError
from ampcheck.saved.report_json import from_json, to_json, write
from ampcheck.values.settings import Settings, parse_scale

EVERYTHING = """
[tool.ampcheck]
precision = "bf16"
scale = "2^10"
steps = 3
verify = false
verify-steps = 2
budget = 5
layers-only = true
sample = 1000
mode = "train"
cast = "weights"
keep = ["layers.0"]
fail-on = "info"
select = ["AMP1", "gradient-underflow"]
ignore = ["AMP102"]
baseline = "base.json"

[tool.ampcheck.per-module-ignores]
"encoder.*" = ["AMP101"]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(text: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path

    return make


def test_every_name_is_read(project):
    config = find(project(EVERYTHING))
    assert set(NAMES) == {"per-module-ignores"} | {
        line.split(" = ")[0] for line in EVERYTHING.splitlines() if " = " in line and line[0] != '"'
    }
    assert config.settings == Settings(
        "bf16",
        10,
        3,
        verify=False,
        verify_steps=2,
        budget=5.0,
        layers_only=True,
        sample=1000,
        mode="train",
        cast="weights",
        keep=("layers.0",),
    )
    assert config.per_module_ignores == {"encoder.*": ("AMP101",)}
    assert config.baseline == config.source.parent / "base.json"
    assert (config.fail_on, config.select, config.ignore) == (
        "info",
        ("AMP1", "gradient-underflow"),
        ("AMP102",),
    )


def test_the_defaults_are_those_of_an_audit():
    assert Config().settings == Settings()


def test_names_are_those_of_the_command_line():
    commands = next(a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    options = {option for action in commands.choices["check"]._actions for option in action.option_strings}
    # A table does not fit on a command line.
    assert {f"--{name}" for name in NAMES} - {"--per-module-ignores"} <= options | {"--baseline"}
    assert {key(name) for name in NAMES} | {"source"} == {field.name for field in fields(Config)}


def test_the_nearest_section_counts(project):
    root = project('[tool.ampcheck]\nfail-on = "never"\n')
    inner = root / "a" / "b"
    inner.mkdir(parents=True)
    assert find(inner).fail_on == "never"
    (root / "a" / "pyproject.toml").write_text("[project]\nname = 'no section'\n")
    assert find(inner).fail_on == "never"
    (inner / "pyproject.toml").write_text("[tool.ampcheck]\n")
    assert find(inner) == Config(source=inner.resolve() / "pyproject.toml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('fail_on = "error"', "no key 'fail_on'; did you mean fail-on?"),
        ("xyzzy = 1", "no key 'xyzzy'; it has precision, scale"),
        ('precision = "fp61"', "expected fp16 or bf16 or auto or fp8:RECIPE, got 'fp61'; did you mean fp16"),
        ("steps = 0", "steps: expected a whole number from 1 on, got 0"),
        ("steps = true", "got True"),
        ('verify = "no"', "verify: expected true or false, got 'no'"),
        ("scale = 1000", 'scale: expected a power of two such as 1024 or "2^10", got 1000'),
        ('ignore = "AMP101"', "ignore: expected a list of codes"),
        ('ignore = ["AMP119"]', "got 'AMP119'; did you mean AMP"),
        ('select = ["overflow"]', "got 'overflow'; did you mean"),
        ('per-module-ignores = ["AMP101"]', "expected a table from globs"),
        ('per-module-ignores = {"a" = ["AMP9"]}', "a: expected a code, a family or a name"),
        ("budget = inf", "budget: expected a number of seconds"),
        ("steps = ", "expected a TOML file, got one that cannot be read"),
    ],
)
def test_what_is_wrong_is_said_and_the_status_is_2(project, capsys, text, told):
    root = project(f"[tool.ampcheck]\n{text}\n")
    write("r.json", to_json(report(cnn()[:2])))
    assert main(["show", "r.json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert str(root / "pyproject.toml") in err


def test_the_command_line_wins(project, capsys):
    project('[tool.ampcheck]\nfail-on = "never"\nignore = ["AMP1"]\n')
    write("r.json", to_json(forward_overflow()))
    assert main(["show", "r.json", "--fail-on", "error"]) == 0  # AMP101 is ignored by the file
    assert main(["show", "r.json", "--fail-on", "error", "--ignore", "AMP2,AMP3"]) == 1
    assert main(["show", "r.json", "--ignore", "AMP2"]) == 0  # by the file nothing ever fails
    capsys.readouterr()
    assert main(["show", "r.json", "--ignore", "AMP20,nonsense"]) == 2
    assert "ignore: expected a code, a family or a name of a rule, got 'nonsense'" in capsys.readouterr().err


def test_what_does_not_count_is_shown_and_saved(project, capsys):
    project('[tool.ampcheck.per-module-ignores]\n"blocks.1" = ["forward-overflow"]\n')
    write("r.json", to_json(forward_overflow()))
    assert main(["show", "r.json"]) == 0
    shown = capsys.readouterr().out
    assert "Suppressed  1 finding that does not count" in shown
    assert "ignored in blocks.1" in shown
    assert main(["show", "r.json", "--format", "json", "-o", "s.json"]) == 0
    saved = from_json(Path("s.json").read_bytes())
    assert [held.finding for held in saved.suppressed] == list(forward_overflow().findings)
    # A file saved before there was such a field is read as if nothing was suppressed.
    old = json.loads(to_json(forward_overflow()))
    del old["suppressed"]
    assert from_json(json.dumps(old)) == forward_overflow()


@pytest.mark.parametrize("text", ["nan", "inf", "-4", "0", "3", "", "2^x", "abc"])
def test_a_scale_is_a_power_of_two(text):
    with pytest.raises(ValueError, match=r"power of two|could not convert"):
        parse_scale(text)


def test_a_section_that_is_no_table(project):
    project("[tool]\nampcheck = 3\n")
    with pytest.raises(ConfigError, match="expected a table"):
        find(Path())


def test_findings_without_a_place_can_be_selected(project, capsys):
    made = report(cnn()[:2], findings=(finding(None, sites=()),))
    write("r.json", to_json(made))
    assert main(["show", "r.json", "--select", "AMP1", "--fail-on", "info"]) == 0
    assert "not selected" in capsys.readouterr().out
