"""What other programs read: SARIF, GitHub's workflow commands, JUnit, CSV and DataFrames, each read by another hand."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from builders import answer, finding
from examples import REPORTS, clean
from hostile import NAMES, hostile
from saved_reports import SAVED, saved

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.diagnose.tables import scale_curve
from ampcheck.renderers import frames, render
from ampcheck.renderers.annotations import LIMIT
from ampcheck.values.findings import Severity
from ampcheck.values.report import by_place
from ampcheck.values.stats import merge
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Health
from ampcheck.values.wording import clean as visible

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "schemas" / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8")
)
EVERY = {
    **{name: saved(name) for name in SAVED},
    **{name: make() for name, make in REPORTS.items()},
    "hostile": hostile(),
}
every = pytest.mark.parametrize("made", EVERY.values(), ids=EVERY)


def shifted(report, lines):
    """Return a report of the same code some lines further down."""
    sites = lambda found: tuple(site._replace(line=site.line + lines) for site in found.sites)  # noqa: E731
    return replace(report, findings=tuple(replace(found, sites=sites(found)) for found in report.findings))


def results(report):
    return json.loads(render(report, "sarif"))["runs"][0]["results"]


@every
def test_sarif_keeps_to_the_published_schema(made):
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    log = json.loads(render(made, "sarif"))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    found = log["runs"][0]["results"]
    levels = {"error": Severity.ERROR, "warning": Severity.WARNING, "note": Severity.INFO}
    everything = [*made.findings, *(one.finding for one in made.suppressed)]
    assert [levels[result["level"]] for result in found] == [finding.severity for finding in everything]
    assert sum("suppressions" in result for result in found) == len(made.suppressed)
    for result in found:
        for location in (*result["locations"], *result["relatedLocations"]):
            if "physicalLocation" in location:
                uri = location["physicalLocation"]["artifactLocation"]["uri"]
                assert re.fullmatch(r"[A-Za-z0-9._~%/:-]+", uri)
                assert urlsplit(uri).scheme in ("", "file")


def test_the_schema_refuses_what_is_wrong():
    log = json.loads(render(saved("t5"), "sarif"))
    log["runs"][0]["results"][0]["level"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate(log)


def test_a_sarif_result_names_its_place_and_its_rule():
    run = json.loads(render(saved("t5"), "sarif"))["runs"][0]
    (result,) = run["results"]
    origin = saved("t5").findings[0].origin
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "tests/saved/t5.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": origin.line},
    }
    assert location["logicalLocations"][0]["fullyQualifiedName"] == origin.module
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted(RULES)
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "AMP101"
    for rule in rules:
        for heading, text in page(rule["id"]).sections.items():
            assert " ".join(text.split()) in rule["help"]["text"], heading


@every
def test_fingerprints_differ_between_findings_and_stay_when_lines_move(made):
    marks = [result["partialFingerprints"]["ampcheck/v1"] for result in results(made)]
    assert len(set(marks)) == len(marks)
    assert [result["partialFingerprints"]["ampcheck/v1"] for result in results(shifted(made, 7))] == marks


def test_what_has_no_line_stands_at_the_file_that_was_audited():
    nowhere = finding(Site("", "", "", Phase.STATE, ""), sites=())
    for target, uri in (("net.py", "net.py"), ("a/net.py:Net", "a/net.py")):
        (result,) = results(replace(clean(), target=target, findings=(nowhere,)))
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    (result,) = results(replace(clean(), target="torchvision:resnet18", findings=(nowhere,)))
    assert result["locations"] == []


def test_absolute_paths_and_odd_letters_are_uris():
    spots = {"/a b/ü.py": "file:///a b/ü.py", "C:\\x\\y.py": "file:///C:/x/y.py", "a b/ü.py": "a b/ü.py"}
    for file, uri in spots.items():
        site = Site("m", "op", "output", Phase.FORWARD, "float16", file, 3)
        (result,) = results(replace(clean(), findings=(finding(site),)))
        artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert unquote(artifact["uri"]) == uri
        assert ("uriBaseId" in artifact) == (not uri.startswith("file:"))


def test_a_message_holds_no_link_that_it_did_not_mean():
    site = Site("m", "op", "output", Phase.FORWARD, "float16")
    (result,) = results(replace(clean(), findings=(finding(site, message="see [x](http://evil) and y[0]"),)))
    assert result["message"]["text"] == r"see \[x\](http://evil) and y\[0\]"


def command(line):
    """Return (command, properties, message) as GitHub's runner reads a line."""
    head, message = re.fullmatch(r"::(.*?)::(.*)", line).groups()
    name, _, told = head.partition(" ")
    pairs = [part.split("=", 1) for part in told.split(",") if part]
    codes = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    read = lambda text: re.sub("%(0D|0A|3A|2C|25)", lambda found: codes[found[0]], text)  # noqa: E731
    return name, {key: read(value) for key, value in pairs}, read(message)


@every
def test_annotations_are_read_as_they_were_meant(made):
    (_, title, verdict), *told = map(command, render(made, "github").splitlines())
    assert title == {"title": f"ampcheck {visible(made.target)}: {answer(made)[0]}"}
    assert verdict.startswith(answer(made)[1])
    kinds = {"error": Severity.ERROR, "warning": Severity.WARNING, "notice": Severity.INFO}
    for severity, kind in ((severity, kind) for kind, severity in kinds.items()):
        expected = [found for found in made.findings if found.severity is severity]
        shown = [(properties, message) for name, properties, message in told if name == kind]
        for found, (properties, message) in zip(expected, shown, strict=False):
            assert properties["title"] == f"{visible(found.code)} {visible(found.name)}"
            assert message.splitlines()[0] == visible(found.message)
            if found.origin and found.origin.file:
                assert properties["file"] == visible(found.origin.file)
                assert properties["line"] == str(max(1, found.origin.line))


def test_annotations_stay_within_githubs_limits_and_count_the_rest():
    site = Site("m", "op", "output", Phase.FORWARD, "float16", "model.py", 3)
    many = [
        finding(site, severity=severity, code=f"{severity}{i}") for severity in Severity for i in range(14)
    ]
    made = replace(clean(), findings=tuple(many))
    health, _ = answer(made)
    told = [command(line) for line in render(made, "github").splitlines()]
    kinds = [name for name, _, _ in told]
    assert health is Health.UNSAFE
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(("error", "warning", "notice"), LIMIT)
    assert told[0][2].endswith(f"; {42 - 29} more findings not annotated")
    assert told[1][1]["title"].startswith("error0")


@every
def test_junit_counts_what_it_holds(made):
    root = ET.fromstring(render(made, "junit"))
    (suite,) = root
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == int(root.get("tests")) == len(cases)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    failed = {case.get("name").split(" ")[0] for case in cases if case.find("failure") is not None} - {
        "verdict"
    }
    if made is not EVERY["hostile"]:
        assert failed == {found.code for found in made.findings if found.severity is Severity.ERROR}
        assert {case.get("name").split(" ")[0] for case in cases} >= set(RULES)
    said = "\n".join(suite.itertext())
    assert all(visible(found.message) in said for found in made.findings)


@every
def test_csv_holds_every_site_and_every_element(made):
    text = render(made, "csv")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(made.low.sites)
    for row, (site, stats) in zip(rows, made.low.sites.items(), strict=True):
        assert row["module"].removeprefix("'") == visible(site.module)
        assert int(row["elements"]) == stats.numel
        assert float(row["amax"]) == stats.amax
        assert (row["lowest_log2"] == "") == (not stats.counts)
        assert None not in row
        assert not re.match(r"[=+@-]", row["module"] + row["op"] + row["file"])
    reference = by_place(made.reference)
    places = [reference[site.place].numel for site in made.low.sites if site.place in reference]
    assert sum(int(row["fp32_elements"]) for row in rows) == sum(places)


def test_a_formula_in_a_name_is_no_formula_in_a_spreadsheet():
    (line,) = [line for line in render(hostile(), "csv").splitlines() if "forward" in line and "n09" in line]
    assert line.startswith("'=cmd|")


@pytest.mark.parametrize("name", SAVED)
def test_frames_add_up_to_the_report(name):
    made = saved(name)
    tables = frames.frames(made)
    assert set(tables) == {"sites", "layers", "findings", "casts", "steps", "scales"}
    whole = merge(made.low.sites.values())
    if whole.numel:
        assert tables["sites"]["elements"].sum() == whole.numel
        assert tables["sites"]["zeros"].sum() == whole.zeros
        assert tables["sites"]["amax"].max() == whole.amax
    assert len(tables["findings"]) == len(made.findings)
    assert len(tables["steps"]) == len(made.reference.steps) + len(made.low.steps)
    if made.low.casts:
        assert tables["casts"]["bytes"].sum() == sum(count.bytes for count in made.low.casts.values())
    curve = tables["scales"].set_index("log2_scale")["underflowed"].to_dict()
    assert curve == {point.log2_scale: point.underflowed.low for point in scale_curve(made)}


def test_frames_keep_names_as_they_are():
    assert set(frames.frames(hostile())["sites"]["module"]) == set(NAMES)


@every
def test_gitlab_is_shown_each_finding_with_its_place(made):
    entries = json.loads(render(made, "gitlab"))
    assert len(entries) == len(made.findings)
    severities = {Severity.ERROR: "critical", Severity.WARNING: "major", Severity.INFO: "info"}
    for entry, one in zip(entries, made.findings, strict=True):
        # What GitLab asks of each: docs.gitlab.com, "Implement a custom tool" of Code Quality.
        assert {"description", "check_name", "fingerprint", "location", "severity"} <= entry.keys()
        assert entry["severity"] == severities[one.severity]
        assert entry["location"]["lines"]["begin"] >= 1
        assert entry["location"]["path"]
        assert re.fullmatch(r"[0-9a-f]{40}", entry["fingerprint"])
    assert len({entry["fingerprint"] for entry in entries}) == len(
        {
            (f.code, f.origin and (f.origin.file, f.origin.module, f.origin.op, f.origin.slot))
            for f in made.findings
        }
    )


def test_gitlab_knows_a_finding_again_when_its_line_moves():
    site = Site("m", "op", "output", Phase.FORWARD, "float16", "model.py", 3)
    here, there = (
        replace(clean(), findings=(finding(site._replace(line=line), sites=(site._replace(line=line),)),))
        for line in (3, 30)
    )
    (one,), (other,) = (json.loads(render(made, "gitlab")) for made in (here, there))
    assert one["fingerprint"] == other["fingerprint"]
    assert (one["location"]["lines"]["begin"], other["location"]["lines"]["begin"]) == (3, 30)
