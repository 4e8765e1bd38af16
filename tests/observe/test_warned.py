"""Warnings of torch's keep their lines where a function of ours stands between the script and what warns."""

import subprocess
import sys
import warnings

import torch
from torch import nn

import ampcheck

SCRIPT = """
import warnings
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def by_hand(schedule):
    schedule.step(4)

def warned():
    for _ in range(2):
        schedule = StepLR(optimizer, 1)
        schedule.step()
        by_hand(schedule)
        schedule.step(5)
        ReduceLROnPlateau(optimizer).step(1.0, 3)
        torch.amp.GradScaler("cuda")
        torch.amp.GradScaler("cuda"); torch.cuda.amp.GradScaler()
        torch.autocast("cuda")
        torch.autocast("cpu", torch.float64)
        model.state_dict({})
        torch.tensor(torch.ones(1))
        nn.utils.clip_grad_norm(model.parameters(), 1.0)
        warnings.warn("its own")

def step():
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(2, 8)).float().square().mean() + torch.range(0, 2).sum()
        loss = loss + torch.fft.fft(model(torch.randn(2, 8)).float()).to(torch.float32).mean()
    loss.backward()
    optimizer.step()

warned()
step()
for how in ("once", "default", "always", "ignore"):
    with warnings.catch_warnings():
        warnings.simplefilter(how)
        warned()
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", module="__main__", category=FutureWarning)
    warnings.filterwarnings("ignore", lineno=18)
    warned()
with warnings.catch_warnings(record=True) as held:
    warned()
print([(one.filename, one.lineno, str(one.message)) for one in held])
warnings.filterwarnings("error", module="__main__")
try:
    torch.amp.GradScaler("cuda")
except UserWarning as error:
    print("raised", error)
warnings.resetwarnings()
warned()
warnings.warn("of nobody", stacklevel=2)
"""


def test_a_script_warns_as_it_does_alone(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = [
        subprocess.run(
            [sys.executable, *words, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        for words in ((), ("-m", "ampcheck", "run", "-o", "report.json"))
    ]
    assert ran[0].stderr.count("Warning: ") > 80
    assert ran[1].stderr == ran[0].stderr
    assert ran[1].stdout == ran[0].stdout


def line():
    return sys._getframe(1).f_lineno


def test_under_a_watch_each_line_warns_once():
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1), 1)
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as held, ampcheck.watch():
        warnings.simplefilter("default")
        for _ in range(2):
            schedule.step(3)
            schedule.step(4)
        last = line() - 1
    found = [(one.filename, one.lineno) for one in held if "epoch parameter" in str(one.message)]
    assert found == [(__file__, last - 1), (__file__, last)]


def test_nothing_of_it_stays_behind():
    def now():
        return vars(warnings)["_showwarnmsg"], list(warnings.filters)

    before = now()
    with ampcheck.watch():
        assert now() != before
    assert now() == before
