"""Scripts that leave little of their surroundings: status, output and numbers stay theirs, and the report is there."""

import os
import signal
import subprocess
import textwrap

import forked
import pytest

from ampcheck.saved.report_json import read

SCRIPT = """
import hashlib, os, signal, sys, tempfile, threading, time
import torch
from torch import nn

def mark(text):
    opened = os.open(os.environ["MARK"], os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(opened, text.encode())
    os.close(opened)

{before}

def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer, scaler = torch.optim.AdamW(model.parameters(), 0.001), torch.amp.GradScaler("cpu")
    losses = []
    for step in range(4):
{step}
        x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    sums = [parameter.sum().item() for parameter in model.parameters()]
    return hashlib.sha256(repr((losses, sums, torch.rand(1).item())).encode()).hexdigest()

mark(train())
{after}
"""
RAISES = "class Odd:\n    def __str__(self): raise ValueError\n    write = flush = __str__\n"
#: What a script does before it trains, in each step, and at its end.
CASES = {
    "nothing": ("", "", "print('done')"),
    "its folder is deleted": ("os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())", "", ""),
    "no mode for new files": ("os.umask(0o777)", "", ""),
    "nothing is imported any more": ("sys.path.clear()", "", ""),
    "it has no standard output": ("", "", "sys.stdout = None"),
    "its output is closed": ("", "", "sys.stdout.close()"),
    "its output raises": ("", "", RAISES + "sys.stdout = Odd()"),
    "its files are closed": ("", "os.closerange(3, 4096)", "os.closerange(0, 3)"),
    "it exits with an object that has no text": ("", "", RAISES + "sys.exit(Odd())"),
    "its hook for errors raises": ("", "", "sys.excepthook = None\nraise KeyError('mine')"),
    "it removes us": ("", "", "[sys.modules.pop(n) for n in list(sys.modules) if n.startswith('ampcheck')]"),
    "it holds a signal back": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "print(signal.sigpending())",
    ),
    "it waits for a signal": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])",
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint(signal.sigwait([signal.SIGUSR1]))",
        "",
    ),
    "its children leave": ("", "child = os.fork()\nif not child: sys.exit(4)\nos.waitpid(child, 0)", ""),
    "it is traced": (
        "hits = set()\ndef tracer(frame, *_): hits.add(frame.f_code.co_name); return tracer\nsys.settrace(tracer)",
        "",
        "print(sys.gettrace() is tracer, {'train', 'mark'} <= hits)",
    ),
    "a timer goes off all the time": (
        (
            "hits = []\nsignal.signal(signal.SIGALRM, lambda *_: hits.append(torch.ones(2).sum()))\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)"
        ),
        "time.sleep(0.005)",
        "signal.setitimer(signal.ITIMER_REAL, 0); print(len(hits) > 1)",
    ),
    "coroutines run beside it": (
        "import asyncio",
        "asyncio.run(asyncio.sleep(0))",
        "async def again(): return await asyncio.to_thread(torch.ones, 1)\nprint(asyncio.run(again()))",
    ),
    "its children train": (
        "",
        "",
        (
            "sys.stdout.flush(); child = os.fork()\n"
            "if not child: print(train()); sys.exit(6)\nprint(os.waitpid(child, 0)[1] >> 8)"
        ),
    ),
    "it trains when it ends": ("import atexit; atexit.register(lambda: print(train()))", "", "1 / 0"),
    "it trains as things die": (
        (
            "import gc; gc.freeze(); gc.set_threshold(2, 1, 1)\n"
            "class Last:\n    def __del__(self): nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward(); print('gone')"
        ),
        "Last()",
        "print(gc.get_threshold())",
    ),
    "other dtypes and devices are the default": (
        (
            "torch.set_default_device('meta'); print(nn.Linear(10**6, 10**6).weight.device)\n"
            "torch.set_default_device('cpu'); torch.set_default_dtype(torch.float64)"
        ),
        "",
        "print(torch.get_default_dtype(), torch.get_default_device())",
    ),
    "modules are called its own way": (
        (
            "call, calls = nn.Module.__call__, []\n"
            "def counted(self, *given): calls.append(1); return call(self, *given)\nnn.Module.__call__ = counted"
        ),
        "",
        "print(len(calls))",
    ),
    "it copies what it trains": (
        "import copy, io, pickle",
        (
            "model, optimizer, scaler = pickle.loads(pickle.dumps(copy.deepcopy((model, optimizer, scaler))))\n"
            "kept = io.BytesIO(); torch.save((model, optimizer, scaler), kept); kept.seek(0)\n"
            "model, optimizer, scaler = torch.load(kept, weights_only=False)"
        ),
        "",
    ),
    "its warnings are errors": (
        "import warnings; warnings.simplefilter('error')",
        "",
        "warnings.warn('mine')",
    ),
    "it opens no file": (
        "",
        "import builtins\ndef refused(*_, **__): raise OSError\nbuiltins.open, kept = refused, open",
        "import builtins\ntry: open('train.py')\nexcept OSError: print('refused')",
    ),
    "few files may be open": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))",
        "",
        "",
    ),
    "its clock stands still": ("time.time = time.monotonic = time.perf_counter = lambda: 5.0", "", ""),
}


def ran(folder, *ours):
    """Run the script; return its exit status, what it printed and the digest of its training."""
    mark = folder / "mark"
    done = subprocess.run(
        [*forked.python(), *ours, "train.py"],
        check=False,
        cwd=folder,
        env=os.environ | {"MARK": str(mark)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    digest = mark.read_text()
    mark.unlink()
    return (done.returncode, done.stdout, digest), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="scripts that close and fork")
@pytest.mark.parametrize("case", CASES)
def test_a_script_that_leaves_little_of_its_surroundings_keeps_its_report(tmp_path, case):
    before, step, after = CASES[case]
    text = SCRIPT.format(before=before, step=textwrap.indent(step or "pass", " " * 8), after=after)
    (tmp_path / "train.py").write_text(text)
    alone, _ = ran(tmp_path)
    watched, said = ran(tmp_path, "-m", "ampcheck", "run", "-o", "r.json")
    assert watched == alone
    assert f"{os.sep}ampcheck{os.sep}" not in said  # no traceback of ours
    report = read(tmp_path / "r.json")
    assert report.loop.steps == 4
    assert not [note for note in report.notes if "incomplete" in note]


def test_ctrl_c_before_the_script_began_is_no_traceback(monkeypatch, capsys):
    from ampcheck import cli

    def interrupted():
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert cli.main(["run", "train.py"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "\nampcheck: interrupted; what was written before is still there\n"
