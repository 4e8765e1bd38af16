"""Saved reports: exact both ways, strict JSON, whole files, and one clear message for everything else."""

import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from builders import finding, stats
from examples import REPORTS, clean
from hypothesis import given
from report_strategies import reports

import ampcheck
from ampcheck.errors import ReportError
from ampcheck.saved.report_json import SCHEMA, from_json, read, schema, to_json, write
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Plan, ScalerPlan
from ampcheck.values.report import Report
from ampcheck.values.trace import Failure, PairError, Phase, Site, StepSummary, Trace

FILE = Path(ampcheck.__file__).parent / "saved" / "report.schema.json"


def strict(text: str) -> dict:
    """Parse JSON as other languages do: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(reports)
def test_what_is_read_is_what_was_written(report: Report) -> None:
    text = to_json(report)
    again = from_json(text)
    assert again == report
    assert to_json(again) == text
    assert list(again.low.sites) == list(report.low.sites)
    assert strict(text)["schema"] == SCHEMA


@pytest.mark.parametrize("name", REPORTS)
def test_example_reports_survive(name: str) -> None:
    report = REPORTS[name]()
    assert from_json(to_json(report)) == report
    assert from_json(to_json(report).encode()) == report


def test_infinities_and_nan_survive() -> None:
    site = Site("", "mm", "output", Phase.FORWARD, "float16")
    steps = (
        StepSummary(math.nan, 3, math.inf, nonfinite=True),
        StepSummary(-math.inf, 0, 0.0, nonfinite=False),
    )
    held = replace(stats([1.0]), amax=math.inf, sum_squares=math.nan)
    errors = {site: PairError(1, 1, 0, math.inf, -math.inf, math.nan, 0.0)}
    numbers = {"a": math.nan, "b": -math.inf}
    low = Trace({site: held}, steps=steps)
    report = replace(clean(), low=low, errors=errors, findings=(finding(site, numbers=numbers),))
    text = to_json(report)
    saved = strict(text)
    assert [step["loss"] for step in saved["low"]["steps"]] == ["nan", "-inf"]
    assert saved["findings"][0]["numbers"] == {"a": "nan", "b": "-inf"}
    again = from_json(text)
    assert repr(again) == repr(report)  # nan is not equal to itself
    assert to_json(again) == text


def test_nothing_that_re_runs_say_becomes_a_number_that_json_lacks() -> None:
    nan = math.nan
    outcome = Outcome(0, loss=nan, loss_error=nan, grad_error=nan, underflow=nan, underflow_by={"w": nan})
    plan = Plan("fp16", scaler=ScalerPlan(nan, nan, nan, 1))
    made = replace(clean(), outcomes={"settled": outcome}, plan=plan)
    text = to_json(made)
    json.loads(text, parse_constant=pytest.fail)
    json.loads(plan.to_json(), parse_constant=pytest.fail)
    again = from_json(text)
    assert math.isnan(again.outcomes["settled"].underflow_by["w"])
    assert again.plan is not None
    assert again.plan.scaler is not None
    assert math.isnan(again.plan.scaler.growth_factor)


def test_keys_that_other_tools_read() -> None:
    site = Site("net.head", "addmm", "output", Phase.BACKWARD, "float16", "model.py", 7)
    bare = site._replace(file="", line=0)
    failure = Failure("RuntimeError", "no", "net", "mm", "model.py", 3)
    report = replace(clean(), findings=(finding(site), finding(bare), finding(site, sites=())))
    saved = strict(to_json(replace(report, low=replace(report.low, failure=failure))))
    assert list(saved)[:6] == ["schema", "tool", "target", "precision", "scale", "log2_scale"]
    assert saved["tool"]["name"] == "ampcheck"
    assert (saved["scale"], saved["log2_scale"]) == (65536.0, 16)
    assert (saved["plan"], saved["claims"]) == (None, [])
    first, unplaced, nowhere = saved["findings"]
    assert [first[key] for key in ("code", "severity", "kind")] == ["AMP201", "warning", "grad-underflow"]
    assert [first[key] for key in ("module", "op", "dtype")] == ["net.head", "addmm", "float16"]
    assert first["location"] == {"file": "model.py", "line": 7}
    assert unplaced["location"] is None
    assert (nowhere["module"], nowhere["op"], nowhere["dtype"], nowhere["location"]) == (None,) * 4
    assert saved["low"]["failure"]["kind"] == "RuntimeError"
    assert saved["reference"]["failure"] is None


def test_defaults_are_left_out_and_every_site_has_its_line() -> None:
    report = clean()
    lines = to_json(report).splitlines()
    saved = strict(to_json(report))
    assert all(0 not in item.values() and "" not in list(item.values())[2:] for item in saved["low"]["sites"])
    assert sum('"counts"' in line for line in lines) == len(report.low.sites) + len(report.reference.sites)


def changed(change: Callable[[dict], object]) -> str:
    saved = json.loads(to_json(clean()))
    change(saved)
    return json.dumps(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got something that is not JSON"),
        ("{", "got something that is not JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "got something that is not JSON"),
        (b"\xff\xfe\x00", "got something that is not JSON"),
        ("[1]", "got JSON whose tool is None"),
        ('{"tool": "ampcheck"}', "got JSON whose tool is 'ampcheck'"),
        ('{"tool": {"name": "ruff"}}', "got JSON whose tool is {'name': 'ruff'}"),
        (
            changed(lambda s: s.update(schema=2, tool={"name": "ampcheck", "version": "9.1"})),
            "got 2 written by .* 9.1",
        ),
        (changed(lambda s: s.pop("low")), "got a damaged one: a Report has no low"),
        (changed(lambda s: s["low"]["sites"][0].update(phase="sideways")), "damaged"),
        (changed(lambda s: s["low"]["sites"][0].update(counts=["many"])), "damaged"),
        (changed(lambda s: s["low"].update(sites=[1])), "damaged"),
        (changed(lambda s: s["findings"].append({})), "damaged"),
    ],
    ids=lambda value: None if isinstance(value, str | bytes) and len(value) > 40 else repr(value),
)
def test_what_is_no_report_is_refused_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(ReportError, match=message) as raised:
        from_json(text)
    assert str(raised.value).startswith("expected a report")
    assert "\n" not in str(raised.value)
    assert ";" in str(raised.value)  # what to do comes after it


def test_reading_says_which_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(ReportError, match=r"could not read .*r\.json.: No such file"):
        read(path)
    path.write_text("{}")
    with pytest.raises(ReportError, match=r"r\.json: expected a report saved by ampcheck"):
        read(path)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("before")
    write(path, to_json(clean()))
    assert read(path) == clean()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path, "text")
    assert os.read(reader, 99) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("name", ["missing/r.json", "folder", "file/r.json"])
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ReportError, match=r"cannot write .*; pass another path"):
        write(tmp_path / name, "text")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_text_that_cannot_be_encoded_is_written_as_an_escape(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    write(path, "before")
    write(path, "\udc80")
    assert path.read_text() == "\\udc80"
    assert list(tmp_path.iterdir()) == [path]


def validator():
    return jsonschema.Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))


def test_the_schema_in_the_package_is_that_of_the_classes(request):
    if request.config.getoption("--update-snapshots"):
        FILE.write_text(schema(), encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == schema()
    jsonschema.Draft202012Validator.check_schema(json.loads(schema()))


@given(reports)
def test_every_saved_report_fits_the_schema(report):
    assert list(validator().iter_errors(strict(to_json(report)))) == []


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("*.json")), ids=lambda path: path.stem)
def test_the_schema_knows_every_field_and_refuses_a_wrong_one(path):
    saved = strict(path.read_text(encoding="utf-8"))
    check = validator()
    check.validate(saved)
    assert set(saved) <= set(check.schema["properties"])
    for name in ("verdict", "precision", "low", "findings"):
        assert not check.is_valid({key: value for key, value in saved.items() if key != name})
    assert not check.is_valid(saved | {"log2_scale": "many"})
    assert not check.is_valid(saved | {"findings": [{"code": "AMP101"}]})
    assert not check.is_valid(saved | {"verdict": {**saved["verdict"], "word": "fine"}})
