"""Which line makes what a script holds in half precision, found in its source, and the errors that name it."""

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

SOURCE = """
    import torch

    class Bank(torch.nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.register_buffer("seen", torch.zeros(8, dtype=torch.float16))
            self.register_buffer("wide", torch.zeros(8, dtype=torch.float32))
            self.given = torch.zeros(8, dtype=kind)
            self.twice = torch.zeros(8).half()

        def reset(self):
            self.twice = torch.zeros(8).bfloat16()

    count, total = 0, torch.zeros(4, dtype=torch.float16)
    state = {"exp_avg": torch.zeros(8, dtype=torch.bfloat16)}
    table = torch.empty(8).to(torch.half)
    table[3] = 1.0
    state["exp_avg"].mul_(0.9).add_(table)
    table += 1
"""


def lines_of(text, *words):
    return {word: next(at for at, line in enumerate(text.splitlines(), 1) if word in line) for word in words}


def written(tmp_path, monkeypatch, text, name="script.py"):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(textwrap.dedent(text))
    return textwrap.dedent(text)


def test_what_one_line_makes_in_half_precision_is_found_and_nothing_else(tmp_path, monkeypatch):
    text = written(tmp_path, monkeypatch, SOURCE)
    found = {maker.name: maker for maker in made_in(["script.py", "gone.py", ""])}
    where = lines_of(
        text, '"seen"', "self.given", '"exp_avg"', "table =", "total =", "table[3]", "state[", "table +="
    )
    assert {name: maker.line for name, maker in found.items()} == {
        "seen": where['"seen"'],
        "given": where["self.given"],
        "state": where['"exp_avg"'],
        "exp_avg": where['"exp_avg"'],
        "table": where["table ="],
        "total": where["total ="],
    }
    assert found["table"].changed == (f"script.py:{where['table[3]']}", f"script.py:{where['table +=']}")
    assert found["exp_avg"].changed == (f"script.py:{where['state[']}",)


def test_what_is_known_to_be_half_may_be_made_like_another_tensor(tmp_path, monkeypatch):
    text = written(
        tmp_path, monkeypatch, "master = [w.clone() for w in weights]\nweights = list(net.parameters())\n"
    )
    assert made_in(["script.py"]) == ()
    (found,) = made_in(["script.py"], {"master", "weights"})
    assert (found.name, found.line) == ("master", lines_of(text, "master")["master"])


def test_a_file_that_cannot_be_read_as_python_has_no_makers(tmp_path, monkeypatch):
    written(tmp_path, monkeypatch, "table = torch.zeros(2).half(\n")
    assert made_in(["script.py"]) == ()


CLOCK = """
    import torch
    from torch import nn

    class Clock(nn.Module):
        def __init__(self, dtype=torch.float16):
            super().__init__()
            self.register_buffer("last", torch.full((64,), 30000.0, dtype=dtype))
            self.out = nn.Linear(4, 1)

        def forward(self, ids, now):
            gap = now - self.last[ids].float()
            waves = torch.stack([torch.sin(gap / 2**k) for k in range(4)], 1)
            with torch.no_grad():
                self.last[ids] = now.to(self.last.dtype)
            return self.out(waves)

    def train(dtype):
        torch.manual_seed(0)
        model = Clock(dtype)
        model.last.add_(torch.arange(64.0) * 0.7)
        steps, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cuda", 2.0**10)
        for step in range(12):
            ids = torch.randperm(64)[:32]
            now = 30000.0 + 5 * step + torch.rand(32) * 4
            steps.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = (model(ids, now).float() - torch.sin(now)[:, None]).square().mean()
            scaler.scale(loss).backward()
            scaler.step(steps)
            scaler.update()
"""


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("dtype", "is_wrong"), [(torch.float16, True), (torch.float32, False)])
def test_a_line_that_rounds_into_a_buffer_says_where_that_is_made(tmp_path, monkeypatch, dtype, is_wrong):
    text = written(tmp_path, monkeypatch, CLOCK, "clocks.py")
    clocks = loaded(tmp_path / "clocks.py")
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        clocks.train(dtype)
    errors = [f for f in session.report("clocks.py").findings if f.severity is Severity.ERROR]
    if not is_wrong:
        assert not errors
        return
    at = lines_of(text, "register_buffer")["register_buffer"]
    made = f"clocks.py:{at}"
    assert any(made in line for error in errors for line in error.fix), errors


MASTERS = """
    import torch
    from torch import nn

    def train(in_half):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).half()
        copies = [one.detach().float().clone().requires_grad_() for one in model.parameters()]
        steps = torch.optim.SGD(copies, 0.01)
        for _ in range(8):
            model.zero_grad()
            (model(torch.randn(64, 8).half()).float().square().mean() * 4e-6 * 2.0**20).backward()
            if not all(bool(one.grad.isfinite().all()) for one in model.parameters()):
                continue
            for copy, one in zip(copies, model.parameters()):
                copy.grad = (one.grad / 2.0**20).float() if in_half else one.grad.float() / 2.0**20
            steps.step()
            with torch.no_grad():
                for copy, one in zip(copies, model.parameters()):
                    one.copy_(copy)
"""


@pytest.mark.parametrize("is_wrong", [True, False])
def test_gradients_that_are_made_on_the_way_are_said_where_the_script_gives_them(
    tmp_path, monkeypatch, is_wrong
):
    """A check reads them first, and right; half precision divides them at another line, by what was multiplied."""
    text = written(tmp_path, monkeypatch, MASTERS, "masters.py")
    session = Session(Schedule(), as_cuda=True)
    with session.watching():
        loaded(tmp_path / "masters.py").train(is_wrong)
    errors = [f for f in session.report("masters.py").findings if f.severity is Severity.ERROR]
    assert [one.code for one in errors[:1]] == ["AMP421"] * is_wrong
    for one in errors[:1]:
        assert one.origin.line == lines_of(text, "copy.grad =")["copy.grad ="]
        assert one.fix == (
            "# copy each gradient to FP32 first, and divide that by the loss scale: grad.float() / scale",
        )


SHADOWED = """
    import torch

    class Scaler(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            level = torch.zeros(8).half()
            self.register_buffer("level", level)

        def observe(self, x):
            mean = x.mean(0).to(self.mean.dtype)
            self.mean += 0.01 * (mean - self.mean)

    scaler = Scaler()
    scaler.bfloat16()
"""


def test_a_variable_that_is_called_like_a_buffer_does_not_make_it(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(text := textwrap.dedent(SHADOWED))
    at = lines_of(text, "level = torch", "scaler.bfloat16()")
    assert [(one.name, one.line) for one in made_in([str(file)], {"mean", "level"})] == [
        ("level", at["level = torch"])
    ]
    nodes = list(ast.walk(ast.parse(text)))
    assert [*module_casts(nodes)] == [at["scaler.bfloat16()"]]
