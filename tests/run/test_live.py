"""While a script runs: a line on a terminal that makes way for the script's own, and scalars for TensorBoard."""

import math
import os
import pty
import re
import subprocess
import sys
import termios
from types import SimpleNamespace

import forked
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.errors import TargetError
from ampcheck.run.progress_line import LoopProgress, Numbers, progress, worst_underflow
from ampcheck.run.tensorboard import Scalar, ScalarFile
from ampcheck.values.loop import ScaleEvent
from ampcheck.values.trace import PairError, Phase, Site, Trace

TRAINING = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18)
for step in range(12):
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    time.sleep(0.05)
    if step % 3 == 0:
        print("step", step, end=" ")
        print("loss", f"{loss.item():.3f}", file=sys.stdout)
print("last line without an end", end="")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TERM": "xterm"}


def on_a_terminal(folder, *words):
    """Run a command on a terminal of its own; return everything that reaches it."""
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 100))
    command = [*forked.python(), *words]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdin=side, stdout=side, stderr=side):
        os.close(side)
        held = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            held += part
    os.close(main)
    return held.decode().replace("\r\n", "\n")


def screen(text):
    """Return the lines that stand on a terminal in the end: a cleared line holds what came after."""
    return [line.rpartition("\r\x1b[2K")[2] for line in text.split("\n")]


def test_a_terminal_shows_where_the_loop_stands_and_keeps_the_scripts_lines(folder):
    bare = on_a_terminal(folder, "train.py")
    text = on_a_terminal(folder, "-m", "ampcheck", "run", "-o", "r.json", "train.py")
    drawn = re.findall(r"\r\x1b\[2K(ampcheck · step [^\r\n]*)", text)
    assert drawn
    assert re.fullmatch(
        r"ampcheck · step \d+ · loss scale 2\^\d+ · \d+ skipped · worst underflow [\d.<]+ %.*", drawn[-1]
    )
    assert [line for line in screen(text) if "ampcheck" not in line] == bare.split("\n")
    assert not re.search(r"step \d+ \r", text)  # a line that the script has begun is not broken into


@pytest.mark.parametrize("words", [("--no-live",), ()])
def test_elsewhere_there_is_no_such_line(folder, words):
    run = ["-m", "ampcheck", "run", *words, "-o", "r.json", "train.py"]
    if words:
        text = on_a_terminal(folder, *run)
    else:
        ended = subprocess.run(
            [*forked.python(), *run],
            check=True,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
        )
        text = ended.stdout + ended.stderr
    assert "\x1b" not in text
    assert "ampcheck · step" not in text


def test_scalars_are_read_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = [
        "-m",
        "ampcheck",
        "run",
        "--every",
        "4",
        "--reference",
        "all",
        "--tensorboard",
        "tb",
        "-o",
        "r.json",
    ]
    words += ["train.py"]
    subprocess.run([*forked.python(), *words], check=True, cwd=folder, env=environment(), capture_output=True)
    from ampcheck.saved.report_json import read

    loop = read(folder / "r.json").loop
    held = EventAccumulator(str(folder / "tb")).Reload()
    tags = held.Tags()["scalars"]
    scale = [(event.step, event.value) for event in held.Scalars("ampcheck/loss scale/scaler 1")]
    assert scale == [(0, 2.0**18), *((event.step + 1, event.after) for event in loop.scales)]
    assert len(scale) > 1
    assert held.Scalars("ampcheck/skipped steps")[-1].value == loop.skipped > 0
    assert [event.step for event in held.Scalars("ampcheck/loss/as trained")] == list(loop.recorded)
    for low, wide in zip(
        *(held.Scalars(f"ampcheck/loss/{name}") for name in ("as trained", "in FP32")), strict=True
    ):
        assert low.value == pytest.approx(wide.value, rel=0.01)
    assert "ampcheck/worst underflow" in tags


# Pure parts


@given(st.lists(st.tuples(st.text(max_size=20), st.integers(0, 2**40), st.floats(width=32)), max_size=6))
def test_every_finite_scalar_comes_back(tmp_path_factory, numbers):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    file = ScalarFile(tmp_path_factory.mktemp("events"))
    file.add(Scalar(*number) for number in numbers[:2])
    file.add(Scalar(*number) for number in numbers[2:])
    read = list(LegacyEventFileLoader(str(file.path)).Load()) if file.path.exists() else []
    values = [
        (event.summary.value[0].tag, event.step, event.summary.value[0].simple_value) for event in read[1:]
    ]
    assert values == [number for number in numbers if math.isfinite(number[2])]
    assert [event.file_version for event in read if event.file_version] == ["brain.Event:2"][: len(read)]


BESIDE = """
import logging, random, sys, threading
import numpy, torch
random.seed(1); numpy.random.seed(2); torch.manual_seed(3)
exec(open("train.py").read())
print(random.random(), numpy.random.random(), torch.rand(1), logging.root.handlers)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print(threading.active_count(), "tensorboard" in sys.modules)
"""


def test_a_script_finds_no_trace_of_it(folder):
    """No thread to wait for, no handler of messages, and the random numbers are its own."""
    (folder / "beside.py").write_text(BESIDE)
    bare, watched = (
        subprocess.run(
            [*forked.python(), *words, "beside.py"],
            check=True,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for words in ((), ("-m", "ampcheck", "run", "--tensorboard", "tb", "-o", "r.json"))
    )
    assert watched.endswith("\n1 True\n")
    assert watched.removesuffix("True\n") == bare.removesuffix("False\n")


KILLED = TRAINING.replace("    time.sleep(0.05)", "    step == 5 and os.kill(os.getpid(), 9)").replace(
    "import sys", "import os, sys"
)


def test_what_was_written_before_a_kill_is_read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder / "train.py").write_text(f"import os; os.makedirs('in'); os.chdir('in')\n{KILLED}")
    words = ["-m", "ampcheck", "run", "--every", "1", "--tensorboard", "tb", "train.py"]
    ended = subprocess.run([*forked.python(), *words], check=False, cwd=folder, env=environment())
    assert ended.returncode == -9
    held = EventAccumulator(str(folder / "tb")).Reload()
    assert [event.step for event in held.Scalars("ampcheck/loss/as trained")] == list(range(6))


def test_without_tensorboard_the_command_ends_before_the_script(folder):
    (folder / "train.py").write_text("print('ran')")
    hidden = "import sys; sys.modules['tensorboard'] = None; from ampcheck.cli import main; sys.exit(main())"
    ended = subprocess.run(
        [*forked.python(), "-c", hidden, "run", "--tensorboard", "tb", "train.py"],
        check=False,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "ampcheck: error: --tensorboard needs TensorBoard, which is not installed; pip install tensorboard\n"
    )
    assert not ended.stdout
    assert not (folder / "tb").exists()


def test_a_folder_of_logs_is_no_tensorboard(tmp_path, monkeypatch):
    import tensorboard.summary  # noqa: F401  # else what is found in its place would stay

    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(TargetError, match="pip install tensorboard"):
        ScalarFile(tmp_path / "events")


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match="expected a folder for TensorBoard"):
        ScalarFile(tmp_path / "file" / "inside")


def pair(lost, live):
    return PairError(live=live, lost=lost, sampled=live)


def test_what_a_standing_says():
    site = Site("net\x1b[31m", "mm", "output", Phase.BACKWARD, "float16")
    errors = {site: pair(3, 10), Site("b", "mm", "output", Phase.FORWARD, "float16"): pair(9, 10)}
    assert worst_underflow(errors) == (0.3, "net\x1b[31m")
    assert worst_underflow({}) is None
    assert LoopProgress(1200, None, 0).line == "ampcheck · step 1,200"
    told = LoopProgress(3, 1024.0, 2, 0.3, "net\x1b[31m").line
    assert told == "ampcheck · step 3 · loss scale 2^10 · 2 skipped · worst underflow 30 % in net"
    assert LoopProgress(3, None, 0, 0.0).line.endswith("worst underflow 0 %")


def test_numbers_are_told_once():
    events = [ScaleEvent(2, "scaler 1", 8.0, 4.0, skipped=True)]
    recorded = [
        SimpleNamespace(step=0, losses=(1.0, 1.5), beside=SimpleNamespace(errors={}), low=Trace()),
        SimpleNamespace(step=2, losses=(0.5, math.nan), beside=None, low=Trace()),
    ]
    watcher = SimpleNamespace(
        steps=3,
        tape=SimpleNamespace(recorded=recorded),
        scales=SimpleNamespace(first={"scaler 1": 8.0}, events=events, current=4.0),
    )
    numbers = Numbers()
    assert {
        (scalar.tag.rpartition("/")[2], scalar.step, scalar.value) for scalar in numbers.fresh(watcher)
    } == {
        ("scaler 1", 0, 8.0),
        ("scaler 1", 3, 4.0),
        ("skipped steps", 3, 1),
        ("as trained", 0, 1.0),
        ("in FP32", 0, 1.5),
        ("as trained", 2, 0.5),
    }
    assert not list(numbers.fresh(watcher))
    assert progress(watcher) == LoopProgress(3, 4.0, 1)
