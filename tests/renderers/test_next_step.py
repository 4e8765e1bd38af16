"""What the first screen says to do, in the words of what is to be changed."""

from dataclasses import replace

import pytest
from builders import Layer, finding, report

from ampcheck.renderers.next_step import next_step
from ampcheck.renderers.words import figures
from ampcheck.values.findings import Severity
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Health


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("mul", "run mul at train.py:7 in FP32"),
        ("_to_copy", "do not cast to fp16 at train.py:7"),
        ("copy_", "do not cast to fp16 at train.py:7"),
    ],
)
def test_a_cast_is_not_said_to_run_in_fp32(op, words):
    origin = Site("net.0", op, "output", Phase.FORWARD, "float16", "train.py", 7)
    found = finding(origin, "AMP101", severity=Severity.ERROR, fix=())
    made = report([Layer("net.0")])
    unsafe = replace(made.verdict, word=Health.UNSAFE)
    assert next_step(replace(made, findings=(found,), plan=None, verdict=unsafe)).startswith(words)


@pytest.mark.parametrize(
    ("phase", "words"), [(Phase.FORWARD, "run mm at"), (Phase.BACKWARD, "run the line at")]
)
def test_an_operation_of_the_backward_is_none_that_its_line_shows(phase, words):
    site = Site("layer", "mm", "output", phase, "float16", "model.py", 7)
    bad = finding(site, code="AMP501", severity=Severity.ERROR)
    made = report([Layer("layer")])
    unsafe = replace(made.verdict, word=Health.UNSAFE)
    assert words in next_step(replace(made, findings=(bad,), plan=None, verdict=unsafe))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([9], "also at line 9"),
        ([9, 7, 12, 9], "also at lines 9, 12"),
        ([7], "1 more place"),
        ([1, 2, 3, 4], "4 more places"),
        ([0], "1 more place"),
    ],
)
def test_other_lines_are_named_where_they_are_few_and_known(lines, said):
    site = Site("layer", "mm", "output", Phase.FORWARD, "float16", "model.py", 7)
    made = replace(finding(site), sites=(site, *(site._replace(line=line) for line in lines)))
    assert said in figures(made)


def test_the_line_that_is_to_be_changed_is_named_without_what_cannot_be_seen():
    site = Site("average", "", "param[values]", Phase.STATE, "float16", "train.py", 12)
    fix = ("# tra\x1b[31min.py:7, where average.values is made: dtype=torch.float32",)
    bad = finding(site, code="AMP504", severity=Severity.ERROR, fix=fix)
    made = report([Layer("average")])
    unsafe = replace(made.verdict, word=Health.UNSAFE)
    said = next_step(replace(made, findings=(bad,), plan=None, verdict=unsafe))
    assert said.endswith("at train.py:7: the lines below show how")
