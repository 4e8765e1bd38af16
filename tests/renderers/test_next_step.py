"""What the first screen says to do, in the words of what is to be changed."""

from dataclasses import replace

import pytest
from builders import Layer, finding, report

from ampcheck.renderers.next_step import next_step
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
