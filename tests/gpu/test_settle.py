"""The command for the day a GPU is at hand: the self-test end to end, and every way in which a run can go wrong."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from claims import report
from settle import Settler
from settling import keep as keep_module
from settling.golden import Golden, figures, unfinished
from settling.keep import COMPLETE, Keep
from settling.plan import BY_NAME, FILES, ROOM, STAGES, STARTING, TOTAL

HERE = Path(__file__).parent
DRIVER = """
import sys
sys.path[:0] = {paths!r}
from settle import Settler
from settling.plan import BY_NAME
from pathlib import Path
settler = Settler(Path({out!r}), device="none")
settler.modules = {{"fp8": "pretended.slow"}}
settler.run([BY_NAME["fp8"]])
"""


def settle(out, limit=20.0, total=60.0, **modules):
    """Run pretended stages by the names of real ones."""
    settler = Settler(out, device="none", seconds=total)
    settler.modules = {name: f"pretended.{module}" for name, module in modules.items()}
    settler.run([BY_NAME[name]._replace(seconds=limit, environment=()) for name in modules])
    return {name: Keep(out, name).part for name in modules}


def test_the_plan_fits_into_nine_minutes_and_eight_files():
    assert len(STAGES) == 9
    assert {stage.letter for stage in STAGES} == set("abcdefgh")
    assert sum(stage.seconds for stage in STAGES) + STARTING <= TOTAL == 540
    assert len(FILES) <= 8
    assert ROOM == 16 * 2**20


@pytest.mark.slow
def test_the_self_test_runs_every_stage(tmp_path):
    """The one test that runs the whole command: as on the day, but small and on a CPU."""
    begun = time.monotonic()
    command = [sys.executable, str(HERE / "settle.py"), "--self-test", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found == sorted(FILES)
    golden = Golden(tmp_path / "out", self_test=True)
    assert unfinished(golden) == []
    for stage in STAGES:
        assert figures(golden, stage.name), stage.name
    text = report(golden)
    assert "3 of 3 runs" in text
    assert "2 of 2 cases; 2 in all details" in text
    assert "4 of 4 bit-identical" in text
    assert "6 of 6 dtypes" in text
    assert "1 of 1; scales recorded right: 1" in text
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0
    assert "at most" not in again.stdout.partition("0 errors")[0], "a whole stage is not run again"
    assert time.monotonic() - begun < 300


def test_a_stage_that_raises_keeps_its_rows_and_the_next_one_runs(tmp_path):
    parts = settle(tmp_path, fp8="raising", scripts="well")
    assert parts["fp8"]["rows"] == {
        "good": {"found": 1},
        "bad": {"error": "ZeroDivisionError: division by zero"},
        "after": {"found": 2},
    }
    assert parts["fp8"]["ended"] == "raised LookupError: no such thing"
    assert parts["scripts"]["ended"] == COMPLETE
    assert unfinished(Golden(tmp_path, self_test=True))[-1] == "fp8 (raised LookupError: no such thing)"


def test_a_stage_over_its_limit_is_ended_with_all_it_started(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    parts = settle(tmp_path, limit=3.0, fp8="endless", scripts="well")
    assert parts["fp8"]["rows"]["good"] == {"found": 1}
    assert parts["fp8"]["rows"]["endless"]["error"].startswith("cut: ")
    assert "never reached" not in parts["fp8"]["rows"]
    assert parts["fp8"]["ended"] == "cut: over its limit"
    assert parts["scripts"]["ended"] == COMPLETE
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_dies_is_followed_by_another(tmp_path):
    part = settle(tmp_path, fp8="dying")["fp8"]
    assert part["rows"]["good"] == {"found": 1}
    assert part["rows"]["fatal"] == {"error": f"its process ended with {-signal.SIGKILL}"}
    assert part["rows"]["after"]["found"] != os.getpid()
    assert part["ended"] == COMPLETE


def test_after_an_error_of_cuda_another_process_goes_on(tmp_path):
    part = settle(tmp_path, fp8="broken_cuda")["fp8"]
    assert "illegal memory access" in part["rows"]["broken"]["error"]
    assert part["rows"]["good"]["found"] != part["rows"]["after"]["found"]
    assert part["ended"] == COMPLETE


def test_when_the_time_is_over_what_is_left_says_so(tmp_path):
    parts = settle(tmp_path, total=5.0, fp8="endless", scripts="well")
    assert parts["fp8"]["ended"].startswith("cut")
    assert parts["fp8"]["rows"]["good"] == {"found": 1}
    assert parts["scripts"]["ended"].startswith("not begun")


def test_a_run_that_is_killed_is_resumed_where_it_was(tmp_path):
    code = DRIVER.format(paths=[str(HERE)], out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(Keep(tmp_path, "fp8").part["rows"]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.2)
    before = Keep(tmp_path, "fp8").part["rows"]
    assert 2 <= len(before) < 6
    time.sleep(1.0)
    assert Keep(tmp_path, "fp8").part["rows"] == before, "what worked for the driver ends with it"
    after = settle(tmp_path, fp8="slow")["fp8"]
    assert after["ended"] == COMPLETE
    assert len(after["rows"]) == 6
    assert before.items() <= after["rows"].items()


def test_rows_that_were_errors_are_tried_again_and_others_are_not(tmp_path):
    keep = Keep(tmp_path, "fp8", {"device": "none"})
    keep.put("row 0", {"at": 1})
    keep.put("row 1", {"error": "x"})
    rows = settle(tmp_path, fp8="well")["fp8"]["rows"]
    assert rows["row 0"] == {"at": 1}
    assert rows["row 1"]["at"] > 1


def test_another_machine_begins_anew(tmp_path):
    Keep(tmp_path, "fp8", {"device": "A", "day": "1"}).put("row", {"at": 1})
    assert Keep(tmp_path, "fp8", {"device": "A", "day": "2"}).has("row")
    assert not Keep(tmp_path, "fp8", {"device": "B", "day": "1"}).has("row")


def test_a_row_that_is_too_large_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(keep_module, "ROOM", 8 * 400)
    keep = Keep(tmp_path, "fp8", {})
    keep.put("small", {"text": "x"})
    keep.put("large", {"text": "x" * 400})
    rows = Keep(tmp_path, "fp8").part["rows"]
    assert rows["small"] == {"text": "x"}
    assert rows["large"]["error"].startswith("left out")


def test_without_a_gpu_the_command_says_so(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, str(HERE / "settle.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no CUDA device: --self-test" in done.stderr
    assert not (tmp_path / "out").exists()
