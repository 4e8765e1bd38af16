"""What is said of GPUs comes from tests/golden alone: generated lines are the generator's, and no other contradicts."""

import json
import re
import sys

import pytest
import torch
from readme import MANUAL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "gpu"))

from claims import _BLOCK, confirmed, manual, pages, readme, report
from settling.golden import Golden
from settling.keep import COMPLETE, Keep
from settling.plan import Scope
from settling.stages import fp8

from ampcheck.bench.confirmed import confirmation

#: Sentences that claim a measurement on a GPU, and those that deny every one.
_CLAIMS = (
    r"(measured|confirmed|ran|run|tried|tested) (here )?on (an?|one|the) (NVIDIA|[ABH]\d00|GPU\b(?! that))"
)
_DENIALS = r"(nothing|no figure) here has run on a GPU|no GPU (has|had) (confirmed|run)|nothing was measured on a GPU"
PROSE = [ROOT / "README.md", *sorted(MANUAL.glob("*.md"))]


def by_hand(text, *, measured):
    """Return the sentences outside of the generated lines that contradict the files."""
    rest = " ".join(_BLOCK.sub("", text).split())
    return [match[0] for match in re.finditer(_DENIALS if measured else _CLAIMS, rest, re.IGNORECASE)]


def test_every_generated_line_is_the_generators():
    """After a change of tests/golden: python tests/gpu/claims.py."""
    for path, text in pages(Golden()).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} was not written by tests/gpu/claims.py"
    for path in (ROOT / "README.md", MANUAL / "measurements.md"):
        assert len(_BLOCK.findall(path.read_text(encoding="utf-8"))) == 1


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_no_line_by_hand_contradicts_the_files(page):
    assert by_hand(page.read_text(encoding="utf-8"), measured=bool(Golden())) == []


def test_prose_is_true_before_and_after_a_day_with_a_gpu():
    """What is written by hand has to hold either way: the day must not make a sentence false."""
    for page in PROSE:
        text = page.read_text(encoding="utf-8")
        assert by_hand(text, measured=True) == by_hand(text, measured=False) == []


def test_the_check_can_fail():
    claim = "All this was measured on an H100.\n<!-- gpu -->\nnothing here has run on a GPU\n<!-- /gpu -->\n"
    assert by_hand(claim, measured=False) == ["measured on an H100"]
    assert by_hand(claim, measured=True) == []
    denial = "Memory: no GPU has\nconfirmed it.\n<!-- gpu -->\nmeasured on an H100\n<!-- /gpu -->\n"
    assert by_hand(denial, measured=True) == ["no GPU has confirmed"]
    assert by_hand(denial, measured=False) == []


def test_the_bench_says_of_its_predictions_what_the_files_say(tmp_path, monkeypatch):
    assert confirmation("memory") == "no GPU has confirmed it" or Golden()
    keep = Keep(tmp_path, "bench", {"device": "NVIDIA Pretended", "torch": "2", "day": "2000-01-01"})
    keep.put("net", {"amp": {"memory, off by": -0.04}, "fp32": {"memory, off by": 0.12}})
    keep.end(COMPLETE, 1.0)
    found = json.loads(confirmed(Golden(tmp_path)))
    monkeypatch.setattr("ampcheck.bench.confirmed._figures", lambda: found)
    assert confirmation("memory") == (
        "on NVIDIA Pretended it was off by median 8 %, worst 12 %; 1 of 2 within 10 %"
    )
    assert confirmation("time") == "no GPU has confirmed it"


def test_what_was_measured_is_said_with_its_machine_and_what_was_not_is_said_too(tmp_path):
    machine = {"device": "NVIDIA Pretended", "torch": torch.__version__, "day": "2000-01-01"}
    keep = Keep(tmp_path, "fp8", machine)
    for job in list(fp8.jobs(Scope(small=True, device="cpu")))[:3]:
        keep.put(job.key, job.run())
    keep.put("another", {"error": "out of memory"})
    keep.end(COMPLETE, 1.0)
    golden = Golden(tmp_path)
    for text in (readme(golden), manual(golden), report(golden)):
        assert f"NVIDIA Pretended (torch {torch.__version__}, 2000-01-01)" in text
        assert "emulated FP8 products are the card's" in text
        assert "3 of 3 within one rounding" in text
        assert "fp8 (1 rows: out of memory)" in text
        assert "traces (not run)" in text
        assert "nothing here has run on a GPU" not in text
    nothing = Golden(tmp_path / "nowhere")
    assert readme(golden).count("\n") == readme(nothing).count("\n") == 1
    assert not nothing
    assert all("nothing here has run on a GPU" in text(nothing) for text in (readme, manual, report))
