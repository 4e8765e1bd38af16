"""The command line as a user meets it: exit codes, one clear message, nothing half written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
import torch

from ampcheck.cli import COMMANDS, main
from ampcheck.cli.check import scale
from ampcheck.diagnose.rules import RULES
from ampcheck.saved.report_json import read
from ampcheck.values.findings import Severity
from ampcheck.values.plan import Plan

HEALTHY = """
import torch
from torch import nn
def model(): return nn.Linear(4, 2)
def batch(): return torch.randn(8, 4)
def loss(model, batch): return model(batch).square().mean()
"""
BROKEN = """
import torch
from torch import nn
class Square(nn.Module):
    def forward(self, x):
        return (x * x).mean(-1, keepdim=True).sqrt()
def model(): return nn.Sequential(nn.Linear(4, 8), Square(), nn.Linear(1, 1))
def batch(): return 2000 * torch.randn(8, 4)
def loss(model, batch): return model(batch).mean()
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "net.py") -> str:
        Path(name).write_text(text)
        return name

    return write


def complaint(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ampcheck: error: ")
    assert "Traceback" not in err
    assert "ampcheck/" not in err
    return err


def test_a_healthy_model_exits_with_0(target, capsys):
    assert main([target(HEALTHY)]) == 0
    assert "SAFE" in capsys.readouterr().out


def test_a_broken_model_exits_with_1_and_its_plan_heals_it(target, capsys):
    name = target(BROKEN)
    assert main([name, "--save-plan", "plan.json", "--save-patch", "change.diff"]) == 1
    assert "net.py:6" in capsys.readouterr().out
    plan = Plan.load("plan.json")
    assert plan.fp32_modules == ("1",)
    subprocess.run(["git", "apply", "--unsafe-paths", "change.diff"], check=True, capture_output=True)
    assert main([name, "--scale", str(int(plan.scaler.init_scale))]) == 0


def test_a_model_with_dropout_passes_its_own_baseline(target, capsys):
    name = target(
        HEALTHY.replace("nn.Linear(4, 2)", "nn.Sequential(nn.Linear(4, 64), nn.Dropout(), nn.Linear(64, 2))")
    )
    assert main([name, "--no-verify", "--format", "json", "-o", "a.json"]) == 0
    torch.rand(1)  # whatever was drawn before in this process
    assert main([name, "--no-verify", "--format", "json", "-o", "b.json"]) == 0
    assert read("a.json") == read("b.json")
    assert main(["baseline", name, "--no-verify", "-o", "base.json"]) == 0
    assert main([name, "--no-verify", "--baseline", "base.json"]) == 0
    wider = Path(name).read_text().replace("torch.randn(8, 4)", "8 * torch.randn(8, 4)")
    Path(name).write_text(wider)
    capsys.readouterr()
    assert main([name, "--no-verify", "--baseline", "base.json"]) == 1
    err = capsys.readouterr().err
    assert "0: forward moved by +3.0 octaves" in err or "0: forward moved by +2.9 octaves" in err
    assert f"ampcheck check {name} --no-verify --baseline base.json --update-baseline" in err


@pytest.mark.parametrize(("limit", "status"), [("error", 1), ("warning", 1), ("never", 0)])
def test_fail_on_moves_the_line(target, limit, status):
    assert (
        main([target(BROKEN), "--fail-on", limit, "--no-verify" if limit == "never" else "--verify-steps=1"])
        == status
    )


def test_json_is_written_whole_and_shown_again(target, capsys):
    name = target(HEALTHY + 'print("noise of the user")\n')
    assert main([name, "--format", "json", "-o", "report.json"]) == 0
    assert capsys.readouterr().out == ""
    saved = json.loads(Path("report.json").read_text())
    assert saved["plan"]["precision"] == "fp16"
    assert read("report.json").target == "net.py"
    assert main(["show", "report.json"]) == 0
    assert "SAFE" in capsys.readouterr().out
    assert main([name, "--format", "json"]) == 0
    assert {finding["severity"] for finding in json.loads(capsys.readouterr().out)["findings"]} <= {"info"}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("def model(:\n", "net.py:1", "SyntaxError"),
        ("import torch\n\nx = 1 / 0\n", "net.py:3", "ZeroDivisionError"),
        (HEALTHY.replace("nn.Linear(4, 2)", "nn.Linear(5, 2)"), "net.py:6", "shape"),
        (HEALTHY.replace("model(batch).square().mean()", "model(batch)"), "", "one floating-point number"),
        (HEALTHY.replace("model(batch).square().mean()", "3.0"), "", "return a tensor"),
        (HEALTHY.replace("model(batch).square().mean()", "torch.ones(())"), "", "depends on trainable"),
        (HEALTHY.replace("model(batch).square()", "torch.empty(2**45)"), "net.py:6", "--batch-size"),
    ],
)
def test_bad_input_is_one_message_at_the_users_line(target, capsys, text, where, what):
    assert main([target(text), "-o", "report.json", "--format", "json"]) == 2
    err = complaint(capsys)
    assert where in err
    assert what in err
    assert not Path("report.json").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_of_a_command_is_its_own(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: ampcheck {command} [-h]")


@pytest.mark.parametrize(
    ("forward", "batch", "begins"),
    [
        ("torch.log(-self.l(x).abs() - 1)", "torch.randn(8, 4)", "log in (root) (net.py:4)"),
        ("self.l(x)", "torch.full((8, 4), float('nan'))", "input[0] of (root)"),
    ],
)
@pytest.mark.parametrize("precision", ["fp16", "bf16", "auto"])
def test_what_is_not_finite_in_fp32_is_not_judged(target, capsys, forward, batch, begins, precision):
    text = (
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return FORWARD\n"
        "    def __init__(self):\n        super().__init__()\n        self.l = torch.nn.Linear(4, 4)\n"
        "def batch(): return BATCH\ndef loss(model, batch): return model(batch).mean()\n"
    )
    path = target(text.replace("FORWARD", forward).replace("BATCH", batch), "net.py")
    assert main([path, "--precision", precision, "-o", "r.json", "-o", "-"]) == 2
    report, shown = read("r.json"), " ".join(capsys.readouterr().out.split())
    assert f"UNKNOWN the loss is not finite in FP32 either: it begins in {begins};" in shown
    assert report.plan is None
    assert report.worst is not Severity.ERROR


def test_a_missing_file_is_named_with_what_is_near(target, capsys):
    target(HEALTHY, "network.py")
    assert main(["netwrk.py"]) == 2
    assert "network.py" in complaint(capsys)


def test_an_unwritable_output_says_so(target, capsys):
    name = target(HEALTHY)
    assert main([name, "-o", "no/such/folder/report.txt"]) == 2
    assert "no/such/folder/report.txt" in complaint(capsys)


def test_the_traceback_is_there_when_asked_for(target, capsys):
    name = target(HEALTHY.replace("nn.Linear(4, 2)", "nn.Linear(5, 2)"))
    assert main([name, "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_exits_with_130_and_leaves_nothing(target):
    name = target(
        HEALTHY + "import time\ndef loss(model, batch):\n    open('begun', 'w')\n    time.sleep(60)\n"
    )
    command = [*forked.python(), "-m", "ampcheck", name, "-o", "report.txt"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not Path("begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
    assert sorted(os.listdir()) == ["begun", "net.py"] or sorted(os.listdir()) == [
        "__pycache__",
        "begun",
        "net.py",
    ]


def test_a_reader_that_leaves_early_is_no_error(target):
    command = f"{sys.executable} -m ampcheck {target(HEALTHY)} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ampcheck net.py")
    assert not re.search("error|Traceback", done.stderr, re.IGNORECASE)  # a slow machine is told what is done


@pytest.mark.parametrize(
    "words", [["{target}", "-v"], ["explain", "AMP101"], ["explain"], ["{target}", "--format", "html"]]
)
def test_a_screen_that_has_no_such_characters_shows_question_marks(target, words):
    path = target(HEALTHY)
    command = [*forked.python(), "-m", "ampcheck", *(word.format(target=path) for word in words)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert not re.search(b"error|Traceback", done.stderr, re.IGNORECASE)
    assert len(done.stdout.decode("ascii").splitlines()) > 10


@pytest.mark.parametrize("code", RULES)
def test_every_code_is_explained(code, capsys):
    assert main(["explain", code.lower()]) == 0
    told = capsys.readouterr().out
    assert code in told
    assert "What to do" in told


def test_an_unknown_code_is_refused(capsys):
    assert main(["explain", "AMP999"]) == 2
    assert "did you mean AMP" in complaint(capsys)
    assert main(["explain", "forward-overflo"]) == 2
    assert "did you mean forward-overflow" in complaint(capsys)


def test_a_rule_is_explained_by_its_name_too(capsys):
    assert main(["explain", "forward-overflow"]) == 0
    by_name = capsys.readouterr().out
    assert main(["explain", "amp101"]) == 0
    assert capsys.readouterr().out == by_name


@pytest.mark.parametrize(
    ("text", "log2"), [("1024", 10), ("2^10", 10), ("2**-3", -3), ("0.5", -1), ("auto", None)]
)
def test_scales_are_powers_of_two(text, log2):
    assert scale(text) == log2


@pytest.mark.parametrize(
    "words", [["--scale", "1000"], ["--steps", "0"], ["--precision", "fp4"], ["--no-such-option"]]
)
def test_bad_options_exit_with_2(target, words):
    with pytest.raises(SystemExit) as stopped:
        main([target(HEALTHY), *words])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--precison", "bf16"], "unrecognized arguments: --precison bf16; did you mean --precision"),
        (["--bugdet=3"], "unrecognized arguments: --bugdet=3; did you mean --budget"),
        (["--budget", "-3"], "argument --budget: expected a number of seconds, got '-3'"),
        (
            ["--precision", "fp4"],
            "argument --precision: expected a precision of fp16, bf16, auto, fp8 or fp8:RECIPE, got 'fp4'",
        ),
    ],
)
def test_a_wrong_option_is_one_line_with_what_is_near_and_where_the_help_is(target, capsys, words, told):
    with pytest.raises(SystemExit):
        main([target(HEALTHY), *words])
    first, *rest = complaint(capsys).splitlines()
    assert told in first
    assert rest == ["  ampcheck check --help"]


def test_a_given_scale_is_the_one_that_is_run(target):
    main([target(HEALTHY), "--scale", "256", "--format", "json", "-o", "r.json"])
    report = read("r.json")
    assert report.log2_scale == 8
    assert report.low.steps[0].log2_scale == 8


def test_steps_add_up(target):
    name = target(HEALTHY)
    main([name, "--format", "json", "-o", "one.json"])
    main([name, "--steps", "3", "--format", "json", "-o", "three.json"])
    one, three = read("one.json"), read("three.json")
    assert len(three.low.steps) == 3
    assert three.reference.operations == 3 * one.reference.operations
    total = {site: stats.numel for site, stats in one.reference.sites.items()}
    assert {site: stats.numel for site, stats in three.reference.sites.items()} == {
        s: 3 * n for s, n in total.items()
    }


def test_precision_auto_takes_bf16_where_only_fp16_needs_help(target):
    main([target(BROKEN), "--precision", "auto", "--format", "json", "-o", "r.json"])
    assert read("r.json").precision == "bf16"
    main([target(HEALTHY), "--precision", "auto", "--format", "json", "-o", "r.json"])
    assert read("r.json").precision == "fp16"
    assert torch.is_autocast_enabled("cpu") is False


def test_what_is_sure_of_a_recipe_is_said_before_anything_runs(target, capsys):
    name = target(
        "import sys, torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.attn, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 10)\n"
        "    def forward(self, x):\n"
        "        print('RUNS')\n"
        "        return self.head(self.attn(x, x, x)[0])\n"
        "def model(): return Net()\n"
        "def batch(): return torch.randn(4, 16, 32)\n"
        "def loss(model, batch): return model(batch).square().mean()\n"
    )
    assert main([name, "--precision", "fp8:ao-rowwise", "--no-verify", "-o", "r.json"]) in {0, 1}
    before, runs, _ = capsys.readouterr().err.partition("RUNS")
    assert runs
    assert (
        "ao-rowwise: torchao leaves them in bf16, or pads them: head (32 -> 10 is no multiple of 16)"
        in before
    )
    assert "attn.out_proj is converted, but its forward never runs" in before
    assert "passed by name, leaves out none" in before
    assert "torchtitan's emulate=True drops the recipe" in before
