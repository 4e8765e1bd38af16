"""`ampcheck train.py`: a script is run as the GPU it is written for, is stopped, and leaves nothing behind."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ampcheck.cli import main
from ampcheck.run.side_effects import kept

SCRIPT = """\
import argparse, json, os, pathlib
import torch
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("--steps", type=int, default=200)
args = p.parse_args()
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.f = torch.nn.Linear(4, 2)
    def forward(self, x): return self.f(x)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), 0.01)
scaler = torch.amp.GradScaler("cuda", enabled=device == "cuda")
print("device", device)
for i in range(args.steps):
    with torch.autocast("cuda", enabled=device == "cuda"):
        loss = net(torch.ones(8, 4, device=device)).square().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    CLIP
    scaler.step(opt)
    scaler.update()
    os.makedirs("out/now", exist_ok=True)
    torch.save(net.state_dict(), "out/now/last.pt")
    with open("log.txt", "a") as log:
        log.write(json.dumps({"step": i}) + "\\n")
    assert len(pathlib.Path("log.txt").read_text().splitlines()) == i + 2, "what was written is read again"
    assert torch.load("out/now/last.pt").keys() == net.state_dict().keys()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("log.txt").write_text("a line of its own\n")

    def write(clip="pass"):
        Path("train.py").write_text(SCRIPT.replace("CLIP", clip))
        return "train.py"

    return write


def report_of(*words):
    status = main(["--seconds", "900", *words, "-o", "r.json"])
    return status, json.loads(Path("r.json").read_text())


def test_a_script_is_audited_as_on_a_gpu_and_stopped(script, capfd):
    status, report = report_of(script(), "here", "--steps", "7")
    told = capfd.readouterr().err
    assert status == 0
    assert "is a training script: 20 steps of it are run, on a CPU that stands in for CUDA" in told
    assert "device cuda" in told
    assert report["loop"]["steps"] == 7  # the script's own --steps: it ended by itself
    assert sorted(path.name for path in Path().iterdir()) == ["log.txt", "r.json", "train.py"]
    assert Path("log.txt").read_text() == "a line of its own\n"
    assert any("log.txt, out/now/last.pt: into a temporary folder" in note for note in report["notes"])


def test_steps_before_the_script_are_ampchecks(script):
    _, report = report_of("--steps", "3", script(), "here")
    assert report["loop"]["steps"] == 4  # the one after the last shows how that ended
    assert "the script was stopped after 3 steps" in report["notes"]


def test_a_planted_bug_is_found_and_is_the_exit_status(script):
    clip = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    status, report = report_of("--steps", "3", script(clip), "here")
    assert status == 1
    assert "AMP401" in {finding["code"] for finding in report["findings"]}


def test_missing_arguments_are_asked_for_with_the_command(script, capfd):
    assert main([script()]) == 2
    assert "the script needs data" in (told := capfd.readouterr().err)
    assert "ampcheck train.py DATA;" in told
    assert told.endswith("\n  ampcheck train.py:Net\n")  # what nobody has to fill in


def test_as_cpu_takes_the_script_as_it_is_without_a_gpu(script, capfd):
    report_of("--as-cpu", "--steps", "2", script(), "here")
    assert "device cpu" in capfd.readouterr().err


def test_an_option_for_models_is_refused_for_a_script(script, capfd):
    assert main([script(), "here", "--precision", "bf16"]) == 2
    assert "--precision is for a model" in capfd.readouterr().err


def test_a_script_that_fails_first_is_no_verdict(script, capfd):
    assert main([script("1 / 0"), "here"]) == 2
    told = capfd.readouterr().err
    assert "ended with ZeroDivisionError before its first step" in told
    assert told.endswith("\n  python train.py here\n  ampcheck train.py:Net\n")


def test_a_loop_that_torch_stops_before_its_first_step_is_a_verdict(script):
    status, report = report_of(script("scaler.unscale_(opt); scaler.unscale_(opt)"), "here")
    assert status == 1
    assert "AMP404" in {finding["code"] for finding in report["findings"]}


def test_what_autocast_refuses_is_the_verdict(script):
    text = script().replace("train.py", "train.py")
    loss = "torch.nn.functional.binary_cross_entropy(net(torch.ones(8, 4, device=device)).sigmoid(), "
    loss += "torch.ones(8, 2, device=device))"
    source = Path(text).read_text().replace("net(torch.ones(8, 4, device=device)).square().mean()", loss)
    Path(text).write_text(source)
    status, report = report_of(text, "here")
    assert status == 1
    assert [finding["code"] for finding in report["findings"]] == ["AMP301"]


def test_an_alarm_of_ours_is_gone_afterwards(script):
    report_of("--steps", "2", script(), "here")
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


# What a script writes.


def test_files_are_kept_and_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("old/a.txt").write_text("a")
    before = {name: getattr(os, name) for name in ("open", "stat", "mkdir", "rename", "scandir")}
    with kept() as found:
        Path("new/deep").mkdir(parents=True)
        Path("new/deep/b.txt").write_text("b")
        Path("old/c.txt").write_text("c")
        os.rename("old/a.txt", "old/d.txt")
        assert sorted(os.listdir("old")) == ["c.txt", "d.txt"]
        assert sorted(entry.name for entry in os.scandir(".")) == ["new", "old"]
        assert Path("old/d.txt").read_text() == "a"
        assert not Path("old/a.txt").exists()
        os.chdir("new/deep")
        assert Path("b.txt").read_text() == "b"
        os.chdir(tmp_path)
        os.remove("new/deep/b.txt")
        assert not Path("new/deep/b.txt").exists()
        with pytest.raises(FileExistsError):
            os.mkdir("old")
        with pytest.raises(FileNotFoundError):
            Path("nowhere/e.txt").write_text("e")
    assert [str(path) for path in sorted(Path().rglob("*"))] == ["old", "old/a.txt"]
    assert Path("old/a.txt").read_text() == "a"
    assert {name: getattr(os, name) for name in before} == before
    assert [Path(path).name for path in found.written] == ["c.txt", "d.txt"]
    assert found.escaped == ()


@pytest.mark.skipif(
    sys.platform != "linux", reason="writes past Python's calls by the number of a system call"
)
def test_what_escapes_is_said(tmp_path, monkeypatch):
    import ctypes

    monkeypatch.chdir(tmp_path)
    with kept() as found:
        library = ctypes.CDLL(None)
        file = library.open(b"native.bin", os.O_WRONLY | os.O_CREAT, 0o600)
        library.close(file)
    assert [Path(path).name for path in found.escaped] == ["native.bin"]
    assert "a library wrote files outside Python's reach" in " ".join(found.words)


def test_a_script_with_relative_imports_runs_as_the_module_that_it_is(tmp_path, monkeypatch, capsys):
    package = tmp_path / "tool" / "train"
    package.mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yaml").write_text("steps: 2")
    (tmp_path / "tool" / "__init__.py").write_text("")
    (tmp_path / "tool" / "model.py").write_text("import torch\nnet = torch.nn.Linear(4, 2)\n")
    text = SCRIPT.replace("import torch\n", "import torch\nfrom ..model import net as Net\n", 1).replace(
        "CLIP", "pass"
    )
    (package / "main.py").write_text(text.replace('"data"', '"config"'))
    monkeypatch.chdir(tmp_path)
    Path("log.txt").write_text("a line of its own\n")
    assert main(["tool/train/main.py"]) == 2
    assert "ampcheck tool/train/main.py configs/small.yaml" in capsys.readouterr().err
    status = main(["tool/train/main.py", "configs/small.yaml", "--steps", "2", "-o", "r.json"])
    assert status == 0
    assert "python -m tool.train.main configs/small.yaml" in capsys.readouterr().err
    assert json.loads(Path("r.json").read_text())["loop"]["steps"] >= 1
