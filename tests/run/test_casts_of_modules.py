"""The lines that cast modules, and states again and again, to half precision: what errors say is to be changed."""

import ast
import importlib.util
import textwrap

import pytest
import torch

from ampcheck.run.makers import made_in
from ampcheck.run.module_casts import module_casts
from ampcheck.run.session import Session
from ampcheck.values.findings import Severity
from ampcheck.values.settings import Schedule

CASTS = {
    "net.half()": True,
    "net = Net().to(device).to(torch.bfloat16)": True,
    "net = build().to(device, WIRE)": True,
    "net = net.to(dtype=torch.float16)": True,
    "self.net = net.bfloat16()": True,
    "keep(nn.Linear(4, 4).half())": True,
    "net = make(torch.float16)": False,  # cast where it is made
    "net.to(device)": False,
    "net = net.to(torch.float32)": False,
    "x = x.half()": False,
    "return batch.to(WIRE)": False,
    "net(x.to(torch.float16))": False,
    "with torch.autocast('cuda', dtype=torch.float16): net.mean.lerp_(net(x).mean.to(net.mean.dtype), 0.1)": False,
}
HEAD = """
WIRE = torch.bfloat16 if wire else torch.float32
out = net(x)
"""


@pytest.mark.parametrize("line", CASTS)
def test_a_cast_of_a_module_is_told_from_one_of_a_tensor(line):
    nodes = [*ast.walk(ast.parse(HEAD + line.replace("return ", "y = ")))]
    assert bool([*module_casts(nodes)]) is CASTS[line]


def test_a_dtype_is_followed_through_the_arguments_of_calls():
    text = """
    class Trainer:
        def __init__(self, net, kind):
            self.net = net.to(kind)

    def make(dtype):
        other = Net().to(other_dtype)
        return Trainer(other, dtype)

    trainer = make(torch.float16)
    trainer.net(x)
    net(x)
    """
    lines = textwrap.dedent(text).splitlines()
    (line,) = module_casts([*ast.walk(ast.parse(textwrap.dedent(text)))])
    assert "net.to(kind)" in lines[line - 1]


STATES = """
    import torch

    class Fisher:
        def __init__(self, net, dtype):
            self.begun = {n: torch.zeros_like(p, dtype=dtype) for n, p in net}
            self.copied = {}
            self.total = torch.zeros(4, dtype=torch.bfloat16)

        def update(self, n, p):
            self.begun[n] = (0.9 * self.begun[n].float() + p).to(self.dtype)
            if n not in self.copied:
                self.copied[n] = p.to(self.dtype)
            self.copied[n] = (self.copied[n].float() + p).to(self.dtype)
            self.total = self.total + p.to(torch.bfloat16)
"""


def test_what_is_cast_again_is_told_from_where_it_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(STATES)
    (tmp_path / "script.py").write_text(text)
    found = {maker.name: maker for maker in made_in(["script.py"], {"begun", "copied", "total"})}
    at = {
        part: next(n for n, line in enumerate(text.splitlines(), 1) if part in line)
        for part in (
            "self.begun =",
            "self.begun[n] =",
            "self.copied[n] = p",
            "self.copied[n] = (",
            "self.total = torch",
        )
    }
    assert (found["begun"].line, found["begun"].cast) == (
        at["self.begun ="],
        (f"script.py:{at['self.begun[n] =']}",),
    )
    both = [f"script.py:{at['self.copied[n] = p']}", f"script.py:{at['self.copied[n] = (']}"]
    assert (found["copied"].location, [*found["copied"].cast]) == (both[0], sorted(both))
    assert (found["total"].line, found["total"].cast) == (at["self.total = torch"], ())


TRAINED = """
    import torch
    from torch import nn

    class Average:
        def __init__(self, net, dtype):
            self.net, self.dtype, self.kept = net, dtype, {}

        def update(self):
            for n, p in self.net.named_parameters():
                if n not in self.kept:
                    self.kept[n] = p.detach().to(self.dtype)
                kept = self.kept[n].float()
                self.kept[n] = (kept + 0.0005 * (p.detach() - kept)).to(self.dtype)

    def train(lr, low=False, average=torch.float32):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        if low:
            net.bfloat16()
        steps, kept = torch.optim.Adam(net.parameters(), lr), Average(net, average)
        with torch.no_grad():
            kept.update()
        began = {n: p.float().clone() for n, p in kept.kept.items()}
        for _ in range(300):
            x = torch.randn(64, 16)
            with torch.autocast("cpu", torch.bfloat16, enabled=not low):
                loss = (net(x.to(net[0].weight.dtype)).float() - x.sum(1, keepdim=True)).square().mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            kept.update()
        return kept, {n: p.float() - began[n] for n, p in kept.kept.items()}
"""


def trained(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ({"lr": 1e-3, "average": torch.bfloat16}, ()),  # which may have no name any more when it is judged
        ({"lr": 1e-4, "low": True}, ("net.bfloat16()",)),
    ],
)
def test_an_average_made_anew_is_judged_and_an_error_names_the_line_that_casts_a_module(
    tmp_path, monkeypatch, what, parts
):
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(TRAINED)
    (tmp_path / "averages.py").write_text(text)
    module = trained(tmp_path / "averages.py")
    _, healthy = module.train(what["lr"])
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        kept, moved = module.train(**what)  # held, so that it still has a name
    assert kept.kept.keys() == moved.keys()
    assert float(moved["2.weight"].norm()) < 0.5 * float(healthy["2.weight"].norm())
    errors = [one for one in session.report("averages.py").findings if one.severity is Severity.ERROR]
    assert errors
    assert errors[0].code == "AMP504"
    lines = [next(n for n, line in enumerate(text.splitlines(), 1) if part in line) for part in parts]
    assert all(any(f"averages.py:{line}" in fix for fix in errors[0].fix) for line in lines), errors[0].fix
