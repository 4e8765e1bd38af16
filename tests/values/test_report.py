"""What a report answers about itself."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest
from builders import Layer, finding, report, stats
from examples import REPORTS, clean

import ampcheck.renderers.saving  # noqa: F401  # a report can then be printed and saved
from ampcheck.errors import ReportError
from ampcheck.renderers import SUFFIXES, render
from ampcheck.values.findings import Severity
from ampcheck.values.formats import BF16, FP16
from ampcheck.values.report import by_place, low_backward, low_tensors
from ampcheck.values.stats import merge
from ampcheck.values.trace import Phase, Site, Trace

SITE = Site("a", "mm", "output", Phase.BACKWARD, "float16", "model.py", 3)


def test_the_worst_severity_counts() -> None:
    severities = [Severity.INFO, Severity.ERROR, Severity.WARNING]
    made = [finding(SITE, severity=severity) for severity in severities]
    assert replace(clean(), findings=tuple(made)).worst is Severity.ERROR
    assert replace(clean(), findings=tuple(made[:1])).worst is Severity.INFO
    assert clean().worst is None
    assert sorted(severities, key=lambda s: s.rank) == [Severity.ERROR, Severity.WARNING, Severity.INFO]


@pytest.mark.parametrize(("name", "fmt", "dtype"), [("clean", FP16, "float16"), ("bf16", BF16, "bfloat16")])
def test_format_and_dtype_follow_the_precision(name: str, fmt: object, dtype: str) -> None:
    made = REPORTS[name]()
    assert made.format == fmt
    assert made.dtype == dtype
    assert dtype in {site.dtype for site in made.low.sites}


def test_what_either_run_did_not_see_is_said() -> None:
    made = replace(clean(), reference=Trace(not_audited={"a": 1}), low=Trace(not_audited={"b": 2}))
    assert made.not_audited == {"a": 1, "b": 2}


def test_places_lose_no_element_and_join_dtypes() -> None:
    half, full = SITE._replace(dtype="float16"), SITE._replace(dtype="float32")
    trace = Trace({half: stats([1.0, 0.0]), full: stats([2.0])})
    assert by_place(trace) == {SITE.place: stats([1.0, 0.0, 2.0])}


def test_gradients_in_question_are_those_of_low_precision_operations_as_fp32_has_them() -> None:
    made = report([Layer("half", line=1), Layer("full", dtype="float32", line=2)])
    copy = Site("half", "_to_copy", "output", Phase.BACKWARD, "float16")
    leaf = Site(
        "half", "", "grad_input[0]", Phase.BACKWARD, "float16"
    )  # the module's own, counted at its operation
    low = {**made.low.sites, copy: stats([1.0]), leaf: stats([2.0])}
    reference = {**made.reference.sites, leaf._replace(dtype="float32"): stats([2.0])}
    made = replace(made, low=replace(made.low, sites=low), reference=replace(made.reference, sites=reference))
    expected = {
        site.place: held
        for site, held in made.reference.sites.items()
        if (site.module, site.op, site.phase) == ("half", "addmm_backward", Phase.BACKWARD)
    }
    assert low_backward(made) == low_tensors(made, Phase.BACKWARD) == expected
    assert merge(low_tensors(made, Phase.FORWARD).values()).numel == merge(expected.values()).numel


def test_a_report_says_on_the_screen_what_its_terminal_format_says() -> None:
    made = REPORTS["nasty"]()
    assert str(made) + "\n" == render(made, "terminal")
    assert repr(clean()).count("\n") == 0
    assert len(repr(made)) < 200


def test_a_notebook_shows_the_page_in_a_frame_that_nothing_gets_out_of() -> None:
    made = REPORTS["nasty"]()

    class Frames(HTMLParser):
        found: ClassVar[list[tuple[str, dict[str, str | None]]]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append((tag, dict(attrs)))

    Frames().feed(made._repr_html_())
    ((tag, attributes),) = Frames.found
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == render(made, "html")


@pytest.mark.parametrize("ending", SUFFIXES)
def test_the_ending_of_a_file_says_in_which_format_a_report_is_saved(tmp_path: Path, ending: str) -> None:
    made = clean()
    made.save(tmp_path / f"report{ending}")
    text = (tmp_path / f"report{ending}").read_text(encoding="utf-8")
    if ending == ".md":
        assert all(
            (tmp_path / picture).is_file() for picture in re.findall(r"\]\((report\.\w+\.svg)\)", text)
        )
    else:
        assert text.rstrip("\n") == render(made, SUFFIXES[ending]).rstrip("\n")


def test_an_ending_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"expected a file that ends in \.txt, \.json.*got 'report\.doc'"):
        clean().save("report.doc")
