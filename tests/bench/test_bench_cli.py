"""`ampcheck bench` from the shell: reports, sweeps, gates, resuming, refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import forked
import pytest
from test_bench_plugin import TARGET

from ampcheck.cli import main

QUICK = [
    "--parts",
    "time,memory,training",
    "--budget",
    "0.1",
    "--steps",
    "4",
    "--seeds",
    "2",
    "--precisions",
    "fp32,amp",
]


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Or pytest-benchmark takes the run for a worker's, and measures nothing.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    path = tmp_path / "net.py"
    path.write_text(TARGET)
    return path


def test_reports_in_every_format(net, tmp_path, capsys):
    assert main(["bench", "net.py", *QUICK, "--batch-sizes", "4,8"]) == 0
    out = capsys.readouterr().out
    assert "net.py · 2 cases" in out
    assert "× CUDA memory" in out
    written = {path.name for path in (tmp_path / "reports").iterdir()}
    pictures = {name for name in written if name.endswith(".svg")}
    assert written - pictures == {"net.csv", "net.html", "net.json", "net.md"}
    assert pictures
    data = json.loads((tmp_path / "reports" / "net.json").read_text())
    assert [case["batch_size"] for case in data["cases"]] == [4, 8]
    assert main(["bench", "--index", "reports"]) == 0
    assert "[Bench: net.py](net.md)" in (tmp_path / "reports" / "README.md").read_text()


def test_compare_and_gates(net, capsys):
    assert main(["bench", "net.py", *QUICK, "--name", "old"]) == 0
    status = main(
        ["bench", "net.py", *QUICK, "--name", "new", "--compare", "reports/old.json", "--max-memory", "0.1"]
    )
    out = capsys.readouterr().out
    assert status == 1
    assert "since before" in out
    assert "gate: batch 16: amp needs" in out


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ("--min-speedup", "the speed of amp cannot be judged: the part 'time' was not measured"),
        ("--max-loss", "the training of amp cannot be judged: the part 'training' was not measured"),
    ],
)
def test_a_gate_without_a_value_ends_in_status_1(net, capsys, gate, why):
    assert main(["bench", "net.py", "--parts", "memory", "--precisions", "fp32,amp", gate, "0.5"]) == 1
    assert f"gate: batch 16: {why}" in capsys.readouterr().out


def test_compare_sets_the_status(net, capsys):
    arguments = ["bench", "net.py", "--parts", "memory", "--precisions", "fp32,amp"]
    assert main([*arguments, "--batch-sizes", "4,8", "--name", "old"]) == 0
    assert main([*arguments, "--batch-sizes", "4,8", "--compare", "reports/old.json"]) == 0
    assert main([*arguments, "--batch-sizes", "4", "--compare", "reports/old.json"]) == 1
    assert "gate: batch 8: amp was measured and is missing now" in capsys.readouterr().out
    assert main([*arguments, "--steps", "7", "--batch-sizes", "4,8", "--compare", "reports/old.json"]) == 1
    assert "gate: the setting steps was 30 and is 7 now" in capsys.readouterr().out
    net.with_name("other.py").write_text(TARGET)
    assert main(["bench", "other.py", *arguments[2:], "--compare", "reports/old.json"]) == 2
    assert "name the same target" in capsys.readouterr().err


def test_without_a_terminal_each_part_is_said_once(net, capsys):
    assert main(["bench", "net.py", *QUICK]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "batch 16: timing" in said
    assert "batch 16: predicting the memory of amp" in said
    assert "batch 16: training fp32" in said
    assert len(set(said)) == len(said) < 20


def test_nothing_is_written_when_nothing_is_asked_for(net, tmp_path):
    assert main(["bench", "net.py", *QUICK, "-o", "-"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


def test_samples_reach_pytest_benchmark(net, tmp_path, capsys):
    words = ["net.py", "--parts", "time", *QUICK[2:], "--benchmark-json", "b.json", "-o", "r"]
    command = [*forked.python(), "-m", "ampcheck", "bench", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = json.loads((tmp_path / "r" / "net.json").read_text())["cases"][0]["rows"]
    theirs = json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    assert [entry["name"] for entry in theirs] == ["test_step[batch-16-fp32]", "test_step[batch-16-amp]"]
    for entry, row in zip(theirs, ours, strict=True):
        assert entry["stats"]["data"] == pytest.approx(row["time"]["samples"], rel=1e-6)
    assert not (tmp_path / ".benchmarks").exists()


def test_inference_checkpointing_and_the_largest_batch(net, tmp_path):
    block = "block = lambda _: nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))\n"
    (tmp_path / "deep.py").write_text(
        "from torch import nn\n"
        + block
        + TARGET.replace(
            "nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))",
            "nn.Sequential(*map(block, range(2)), nn.Linear(32, 8))",
        )
    )
    arguments = ["--parts", "memory", "--mode", "train,infer", "--checkpointing", "on,off", "--fits", "1MB"]
    assert main(["bench", "deep.py", *arguments, "--precisions", "fp32,amp"]) == 0
    cases = json.loads((tmp_path / "reports" / "deep.json").read_text())["cases"]
    assert [(case["mode"], case["checkpointing"]) for case in cases] == [
        ("train", True), ("train", False), ("infer", False),
    ]  # fmt: skip
    fits = [[row["largest_batch"] for row in case["rows"]] for case in cases]
    assert fits[0][0] > fits[1][0] > 100
    assert fits[1][1] > fits[1][0]


def test_ctrl_c_keeps_what_was_done_and_resume_goes_on(net, tmp_path):
    command = [*forked.python(), "-m", "ampcheck", "bench", "net.py", *QUICK, "--batch-sizes", "4,8,16"]
    command[command.index("--steps") + 1] = "100"
    running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    part = tmp_path / "reports" / "net.partial.json"
    until = time.monotonic() + 120
    while not part.exists() and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert "--resume" in errors
    done = json.loads(part.read_text())
    assert done["interrupted"]
    assert 1 <= len(done["cases"]) <= 3
    assert done["cases"][0]["again"]
    again = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, check=False, env=os.environ
    )
    assert again.returncode == 0, again.stderr
    whole = json.loads((tmp_path / "reports" / "net.json").read_text())
    assert [case["batch_size"] for case in whole["cases"]] == [4, 8, 16]
    for before, after in zip(done["cases"], whole["cases"], strict=False):
        for name, keeps in {"time": "again", "memory": "reasons"}.items():
            assert name not in before["parts"] or before[keeps] == after[keeps], "it was not measured again"
    assert not part.exists()


def test_parts_can_be_done_one_by_one(net, tmp_path):
    """Times on a quiet machine first, the rest later, into the same report."""
    arguments = ["bench", "net.py", *QUICK[2:], "--parts"]
    assert main([*arguments, "time,memory"]) == 0
    path = tmp_path / "reports" / "net.json"
    timed = json.loads(path.read_text())["cases"][0]
    assert (timed["parts"], timed["rows"][1]["courses"]) == (["time", "memory"], [])
    assert main([*arguments, "time,memory,training", "--resume"]) == 0
    whole = json.loads(path.read_text())
    case = whole["cases"][0]
    assert case["parts"] == ["time", "memory", "training"]
    assert len(case["rows"][1]["courses"]) == 2
    for before, after in zip(timed["rows"], case["rows"], strict=True):
        assert (before["time"], before["memory"]) == (after["time"], after["memory"])
    assert whole["command"] == "ampcheck " + " ".join([*arguments, "time,memory,training"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["net.py", "--precisions", "fp8"], "expected some of fp32"),
        (["net.py", "--margin", "-1"], "expected a number above zero, got '-1'"),
        (["net.py", "--min-speedup", "fast"], "expected a number above zero"),
        (["net.py", "--gpu", "voodoo2"], "expected some of p100"),
        (["net.py", "--fits", "much"], "expected a size such as 16GiB"),
        (["net.py", "--compile", "maybe"], "expected some of off, on, reduce-overhead"),
    ],
)
def test_what_makes_no_sense_is_refused(net, arguments, text, capsys):
    with pytest.raises(SystemExit) as left:
        main(["bench", *arguments])
    assert left.value.code == 2
    assert text in capsys.readouterr().err


def test_a_target_is_needed(net, capsys):
    assert main(["bench"]) == 2
    assert "expected a target" in capsys.readouterr().err
    assert main(["bench", "nothing.py"]) == 2


def test_a_fresh_plan_is_a_row(net, tmp_path):
    arguments = ["--parts", "memory,accuracy", "--plan", "fresh", "--precisions", "fp32,amp"]
    assert main(["bench", "net.py", *arguments]) == 0
    rows = json.loads((tmp_path / "reports" / "net.json").read_text())["cases"][0]["rows"]
    assert [row["precision"] for row in rows] == ["fp32", "amp", "plan"]
    assert rows[2]["one_step"]["gradients"]["relative_rms"] < 0.01


BREAKS = "def pytest_runtest_setup(item):\n    raise RuntimeError('no session with me')\n"


@pytest.mark.parametrize(
    ("file", "plugin", "said"),
    [
        (
            "none/b.json",
            "",
            "it raised FileNotFoundError: [Errno 2] No such file or directory: 'none/b.json'",
        ),
        ("b.json", "breaks", "its session ended with status 1; what pytest printed above says why"),
    ],
)
def test_a_session_of_pytest_benchmark_that_fails_is_an_error(net, tmp_path, file, plugin, said):
    (tmp_path / "breaks.py").write_text(BREAKS)
    arguments = ["--parts", "time", "--budget", "0.1", "--precisions", "fp32", "-o", "r"]
    done = subprocess.run(
        [*forked.python(), "-m", "ampcheck", "bench", "net.py", *arguments, "--benchmark-json", file],
        check=False, capture_output=True, text=True,
        env=os.environ | {"PYTEST_PLUGINS": plugin, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 2
    message = f"expected pytest-benchmark to take the samples for --benchmark-json={file}, {said}"
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert (tmp_path / "r" / "net.json").exists(), "what was measured is not lost"
    assert not plugin or "no session with me" in done.stdout


def test_what_pytest_benchmark_cannot_be_given_is_refused_before_anything_is_measured(net, tmp_path, capsys):
    assert main(["bench", "net.py", "--parts", "memory", "--benchmark-json", "b.json"]) == 2
    assert "expected the part 'time'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


def test_what_to_compare_with_is_read_before_anything_is_measured(net, tmp_path, capsys):
    assert main(["bench", "net.py", "--compare", "gone.json"]) == 2
    assert "could not read 'gone.json'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


def test_the_articles_view_is_its_table_and_nothing_else(net, capsys):
    assert main(["bench", "net.py", *QUICK, "--view", "article"]) == 0
    title, *heads = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert title == "net.py"
    assert {"precision", "training", "loss", "CUDA", "×", "memory", "step"} <= set(" ".join(heads).split())
    assert [row.split()[0] for row in heads[-2:]] == ["fp32", "amp"]


def test_the_articles_view_has_a_column_for_each_gpu_in_place_of_the_cpus_times(net, capsys):
    words = [
        "--parts",
        "memory",
        "--precisions",
        "fp32,amp,bf16",
        "--gpu",
        "a100-80g,t4",
        "--view",
        "article",
    ]
    assert main(["bench", "net.py", *words]) == 0
    out = capsys.readouterr().out
    heads = " ".join(out.partition("fp32")[0].split())
    assert heads.count("× speed on") == heads.count("ms on") == 2
    assert not {"here", "trained"} & {*heads.split()}
    assert re.search(r"amp +[\d.]+ +[\d.]+ \[[\d.]+, [\d.]+\] ", out)
    assert re.search(r"bf16 .* –  +–  ", out), "a T4 has no bf16"
    page = (net.parent / "reports" / "net.html").read_text()
    assert "ms on t4, predicted" in page.partition("<h2>Summary")[2].partition("<h2>")[0]
