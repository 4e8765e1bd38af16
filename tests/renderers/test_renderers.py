"""Every format: pictures that were looked at, and what holds for all of them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from builders import Layer, report
from conftest import SNAPSHOTS
from examples import REPORTS
from hostile import NAMES, hostile
from instructions import instructions
from saved_reports import FOLDER, SAVED, repeated, saved

from ampcheck.renderers import RENDERERS, SUFFIXES, markdown, render
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.values.report import Report
from ampcheck.values.stats import TensorStats

#: What a snapshot's name ends with; a saved report is its own snapshot of JSON.
ENDINGS = {
    "terminal": "txt",
    "markdown": "md",
    "github": "txt",
    "github-summary": "md",
    "sarif": "json",
    "junit": "xml",
    "csv": "csv",
}


def shown(made: Report, form: str) -> str:
    """Return a report in a format, without what changes with the version or with the text of a manual."""
    text = render(made, form)
    if form != "sarif":
        return text
    log = json.loads(text)
    driver = log["runs"][0]["tool"]["driver"]
    del driver["rules"], driver["version"]
    return json.dumps(log, indent=1) + "\n"


#: Each twice as large as the one before, and large enough for what is not in proportion to show.
SIZES = (40, 80, 160)


@pytest.mark.parametrize("form", ENDINGS)
@pytest.mark.parametrize("name", SAVED)
def test_a_saved_report_looks_as_it_did(name: str, form: str, snapshot: Callable[[str, str], None]) -> None:
    snapshot(shown(saved(name), form), f"saved/{name}.{form}.{ENDINGS[form]}")


@pytest.mark.parametrize("form", sorted(set(RENDERERS) - {"csv", "github-summary"}))
def test_what_goes_away_with_a_cause_is_told_beside_it(form: str) -> None:
    made = saved("t5")
    first, *others = made.findings
    told = render(replace(made, findings=(replace(first, follows=("gradients overflow",)), *others)), form)
    assert "gradients overflow" in told
    assert "gradients overflow" not in render(made, form)


@pytest.mark.parametrize("name", SAVED)
def test_the_json_of_a_saved_report_is_that_report(name: str) -> None:
    version = re.compile(r'"version":"[^"]*"')
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert version.sub("", to_json(saved(name))).rstrip() == version.sub("", text).rstrip()


def test_the_example_page_is_that_of_its_report() -> None:
    """It is made by `ampcheck show tests/saved/t5.json -o reports/example.md`."""
    folder = FOLDER.parent.parent / "reports"
    pictures = markdown.pictures(saved("t5"))
    names = {name: f"example.{name}.svg" for name in pictures}
    assert (folder / "example.md").read_text(encoding="utf-8") == markdown.render(saved("t5"), names)
    for name, picture in pictures.items():
        assert (folder / names[name]).read_text(encoding="utf-8") == picture


def test_no_snapshot_is_an_orphan() -> None:
    found = {path.name for path in (SNAPSHOTS / "saved").iterdir()}
    assert found == {f"{name}.{form}.{end}" for form, end in ENDINGS.items() for name in SAVED}


def test_the_saved_reports_are_the_ones_that_were_asked_for() -> None:
    claims = {name: {finding.code for finding in saved(name).findings} for name in SAVED}
    assert claims["cnn"] == set()
    assert "AMP101" in claims["t5"]
    assert "AMP203" in claims["no_scale"]
    assert "AMP301" in claims["dtype_error"]
    assert [rank.name for rank in saved("two_ranks").ranks] == ["rank0", "rank1"]


def test_every_ending_and_every_snapshot_is_of_a_format() -> None:
    assert set(SUFFIXES.values()) <= set(RENDERERS)
    assert set(ENDINGS) <= set(RENDERERS)
    with pytest.raises(ValueError, match=r"expected a format of terminal, .*, got 'pdf'; pass one"):
        render(saved("cnn"), "pdf")


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize("name", [*REPORTS, "hostile"])
def test_a_renderer_is_a_function_of_the_report(name: str, form: str) -> None:
    made = hostile() if name == "hostile" else REPORTS[name]()
    before = repr(made)
    text = render(made, form)
    assert text == render(from_json(to_json(made)), form)
    assert repr(made) == before
    assert text.endswith("\n") or form == "json"
    text.encode("utf-8")


@pytest.mark.parametrize("form", RENDERERS)
def test_hostile_names_are_there_and_cannot_be_seen_to_act(form: str) -> None:
    text = render(hostile(), form)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff\ufffe]", text)
    told = [f"n{index:02}" for index in range(1, len(NAMES) + 1)]
    missing = [word for word in told if word not in text]
    assert not missing or form in ("github", "github-summary")  # these show the worst and count the rest
    assert told[0] in text


def copies(number: int) -> Report:
    """Return a report of so many pairs of modules, whose histograms are as short as they can be."""
    base = report([Layer("a"), Layer("b")])
    one = TensorStats(-3, (7,), amax=0.2)
    runs = (replace(trace, sites=dict.fromkeys(trace.sites, one)) for trace in (base.reference, base.low))
    reference, low = runs
    return repeated(replace(base, reference=reference, low=low), number)


@pytest.mark.parametrize("form", RENDERERS)
def test_work_grows_with_the_report_and_no_faster(form: str) -> None:
    instructions(
        partial(render, copies(SIZES[0]), form)
    )  # what is imported late is loaded, what is kept is known
    few, some, many = (instructions(partial(render, copies(number), form)) for number in SIZES)
    assert many - some <= 2.15 * max(0, some - few)


def test_loading_takes_work_in_proportion_to_the_report() -> None:
    few, some, many = (instructions(partial(from_json, to_json(copies(number)))) for number in SIZES)
    assert many - some < 2.05 * (some - few)
