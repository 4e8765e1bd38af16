"""`ampcheck run`: the script's argv, path, output, exceptions and exit status are those of bare Python."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import forked
import pytest

from ampcheck.errors import TargetError
from ampcheck.run.launch_script import find, parse
from ampcheck.saved.report_json import read
from ampcheck.values.settings import Schedule

ABOUT = """
import json, os, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "doc": __doc__, "package": __package__,
    "spec": __spec__ is None, "main": main.__dict__ is globals(), "cwd": os.getcwd(),
    "file": globals().get("__file__"), "names": sorted(name for name in globals() if name.startswith("__")),
}))
"""

TRAINING = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    with torch.autocast("cpu", torch.bfloat16, enabled="--amp" in sys.argv):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex())
    if "--slow" in sys.argv and step == 3:
        print("waiting", flush=True)
        import time
        time.sleep(60)
print(torch.rand(1).item().hex())
sys.exit(7 if "--seven" in sys.argv else 0)
"""


def interpreter():
    """Return the command of a new Python, for what hangs on how a script begins, and for what is done without torch."""
    return (sys.executable,)


def python(*words, cwd, start=forked.python):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*start(), *words], check=False, cwd=cwd, env=env, capture_output=True, text=True)


def both(folder, *words, start=forked.python):
    """Run a command line bare, and under ampcheck."""
    run = ("-m", "ampcheck", "run")
    return python(*words, cwd=folder, start=start), python(*run, *words, cwd=folder, start=start)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "about.py").write_text(ABOUT)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text("import sys\nprint(sys.argv[1:], __package__)\n")
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


# What a script sees


def test_a_script_finds_the_world_as_under_python(folder):
    bare, run = both(folder, "about.py", "--every", "3", "-m", "x", start=interpreter)
    assert json.loads(run.stdout) == json.loads(bare.stdout)


def test_two_dashes_end_our_options_and_no_others(folder):
    bare = python("about.py", "--", "-x", cwd=folder, start=interpreter)
    words = ("--every", "3", "--", "about.py", "--", "-x")
    run = python("-m", "ampcheck", "run", *words, cwd=folder, start=interpreter)
    assert json.loads(run.stdout) == json.loads(bare.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "package", "--first", "1"),
        ("-c", "import sys; print(sys.argv, repr(sys.path[0]), __name__)", "-x", "1"),
        ("package", "3"),
    ],
)
def test_modules_commands_and_folders(folder, words):
    bare, run = both(folder, *words, start=interpreter)
    if words[0] == "package":  # the interpreter gives a folder's __main__ no package
        bare = python("package/__main__.py", "3", cwd=folder, start=interpreter)
    assert run.stdout == bare.stdout


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(5)",
        "import sys; sys.exit('a message')",
        "import sys; sys.exit(None); print(1)",
        "def f():\n    raise ValueError('no')\nf()",
        "1 +",
        "import sys\nsys.excepthook = lambda *_: print('hook', file=sys.stderr)\n1 / 0",
        "import atexit; atexit.register(print, 'bye'); print('hello')",
    ],
)
def test_endings_are_the_scripts_own(folder, code):
    (folder / "ends.py").write_text(code)
    bare, run = both(folder, "ends.py", start=interpreter)
    said = "ampcheck: no training was seen: the script never imported torch\n"
    assert run.stdout == bare.stdout
    assert run.stderr.replace(said, "") == bare.stderr
    assert run.returncode == (bare.returncode or 2)  # nothing was trained, which is never "clean"


def test_children_of_a_script_are_children_of_a_script(folder):
    (folder / "spawns.py").write_text(
        textwrap.dedent("""
        import multiprocessing, pickle
        class LoopObject: pass
        def work(n): return n * n
        if __name__ == "__main__":
            assert type(pickle.loads(pickle.dumps(LoopObject()))) is LoopObject
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(work, [1, 2, 3]))
        """)
    )
    bare, run = both(folder, "spawns.py", start=interpreter)
    assert run.stdout == bare.stdout == "[1, 4, 9]\n" * 2


# Training


@pytest.mark.parametrize("words", [(), ("--amp", "--seven")])
def test_training_prints_the_same_bits_and_ends_the_same(folder, words):
    bare, run = both(folder, "train.py", *words)
    assert run.stdout == bare.stdout
    assert run.returncode == bare.returncode
    assert ("bf16" if words else "FP32") in run.stderr


@pytest.mark.parametrize("asking", ["find_spec('torch')", "find_spec('torch').loader.get_filename('torch')"])
def test_training_is_seen_where_a_library_first_asks_whether_torch_is_there(folder, asking):
    (folder / "asks.py").write_text(f"from importlib.util import find_spec\nassert {asking}\n{TRAINING}")
    bare = python("asks.py", cwd=folder)
    run = python("-m", "ampcheck", "run", "asks.py", cwd=folder, start=interpreter)
    assert run.stdout == bare.stdout
    assert (run.returncode, "FP32" in run.stderr) == (0, True)


def test_a_report_is_written_beside_the_output(folder):
    run = python(
        *("-m", "ampcheck", "run", "--every", "2", "--reference", "all", "--format", "json", "-o", "r.json"),
        *("train.py", "--amp"),
        cwd=folder,
    )
    assert run.returncode == 0
    assert run.stderr == ""
    report = read(folder / "r.json")
    assert report.target == "train.py --amp"
    assert report.precision == "bf16"
    assert report.loop.steps == 6
    assert report.loop.recorded == (0, 1, 2, 4)
    assert len(report.low.steps) == 4
    assert {site.file for site in report.low.sites if site.file} == {"train.py"}


def test_an_interrupted_script_keeps_what_there_is(folder):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    words = ["run", "-o", "r.json", "--format", "json", "train.py", "--amp", "--slow"]
    command = [*forked.python(), "-m", "ampcheck", *words]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        while "waiting" not in run.stdout.readline():
            assert run.poll() is None
        time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "KeyboardInterrupt" in errors
    report = read(folder / "r.json")
    assert report.loop.steps == 4
    assert any("ended with KeyboardInterrupt" in note for note in report.notes)


def test_without_training_there_is_a_verdict_of_its_own(folder):
    run = python(
        "-m", "ampcheck", "run", "-c", "import torch; torch.nn.Linear(2, 2)(torch.ones(1, 2))", cwd=folder
    )
    assert run.returncode == 2
    assert "no training was seen" in run.stderr


def test_cuda_is_stood_in_for_where_a_script_asks_for_it(folder):
    script = TRAINING.replace('torch.autocast("cpu", torch.bfloat16', 'torch.autocast("cuda", torch.float16')
    script = script.replace("nn.Linear(16, 4))", "nn.Linear(16, 4)).cuda()").replace(
        "torch.randn(4, 8)", "torch.randn(4, 8, device='cuda')"
    )
    (folder / "train.py").write_text(script)
    bare, run = both(folder, "train.py", "--amp")
    assert bare.returncode == 1
    assert run.returncode == 0
    assert re.search(r"ampcheck train.py --amp · Sequential · fp16", run.stderr)
    refused = python("-m", "ampcheck", "run", "--no-as-cuda", "train.py", cwd=folder)
    assert refused.returncode == 1


# Pure parts


def test_what_is_run_is_parsed():
    assert parse(["a", "b"], None, "print()").shown == "-c print()"
    assert parse(["a"], "package", None).shown == "-m package a"
    with pytest.raises(TargetError, match="expected a script to run, got nothing"):
        parse([], None, None)
    with pytest.raises(TargetError, match=r"expected a script that exists, got 'nothing\.py'"):
        find("nothing.py")


def test_steps_are_wanted_at_the_beginning_and_now_and_then():
    schedule = Schedule(first=2, every=10)
    assert [step for step in range(25) if schedule.wants(step)] == [0, 1, 10, 20]
    assert [step for step in range(45) if schedule.wants(step, 2)] == [0, 1, 2, 3, 20, 21, 40, 41]
    assert [step for step in range(9) if Schedule(steps=frozenset({3, 5})).wants(step)] == [3, 5]
