"""What is printed as a fix is run as it is printed: it heals, or its first line says that it is a sketch."""

from types import SimpleNamespace

import pytest
import torch
import truth
from running import CASES, load, run

from ampcheck.fix.applied import patched
from ampcheck.fix.patch import LOOP, SKETCH
from ampcheck.fix.printed import proved
from ampcheck.fix.verify import Lab
from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.step import Step
from ampcheck.run.audit import audit
from ampcheck.targets import load as load_target
from ampcheck.values.plan import Plan
from ampcheck.values.settings import Settings

HEAD = "import torch\nfrom torch import nn\n"
RMS = """
class Norm(nn.Module):
    def forward(self, x):
        return x / (x * x).mean(-1, keepdim=True).sqrt()
"""
REST = """
def batch():
    return 900 * torch.randn(32, 16), torch.randint(0, 4, (32,))

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
PLAIN = """
def model():
    return nn.Sequential(nn.Linear(16, 64), Norm(), nn.Linear(64, 4))
"""
FILES = {
    "torch is not among the file's names": (
        "from torch import nn, randn, randint\n" + RMS + PLAIN + REST.replace("torch.rand", "rand"),
        "---",
    ),
    "an input is whole numbers": (
        HEAD
        + """
class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 64), nn.Linear(64, 64)
    def forward(self, tokens):
        h = self.linear(self.embedding(tokens)) * 600
        return (h / (h * h).mean(-1, keepdim=True).sqrt()).mean(1)

def model():
    return nn.Sequential(Tower(), nn.Linear(64, 64), nn.Linear(64, 4))
"""
        + REST.replace("900 * torch.randn(32, 16)", "torch.randint(0, 50, (32, 9))"),
        "---",
    ),
    "inputs come by keyword alone to one of two of a class": (
        HEAD
        + """
class Mixer(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by, self.linear = by, nn.Linear(64, 64)
    def forward(self, *, x, gate):
        return self.linear((x * gate) / self.by)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(16, 64)
        self.small, self.large, self.out = Mixer(1.0), Mixer(1e6), nn.Linear(64, 4)
    def forward(self, x):
        a, b = self.a(x), self.b(x)
        return self.out(self.small(x=a / 1000, gate=b / 1000) + self.large(x=a, gate=b))

def model():
    return Net()
"""
        + REST,
        "import torch",
    ),
    "inputs come in a list": (
        HEAD
        + RMS.replace("x):", "xs):\n        x = xs[0]")
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.out = nn.Linear(16, 64), Norm(), nn.Linear(64, 4)
    def forward(self, x):
        return self.out(self.norm([self.a(x)]))

def model():
    return Net()
"""
        + REST,
        "import torch",
    ),
    "a class is kept in a table of its file": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        + HEAD
        + """
if TYPE_CHECKING:
    from somewhere import Some
KNOWN = {}
def known(kind):
    assert kind.__name__ not in KNOWN
    KNOWN[kind.__name__] = kind
    return kind
@known"""
        + RMS.replace("x):", "x: Some) -> Some:")
        + PLAIN
        + REST,
        "---",
    ),
}


def audited(path, precision="fp16"):
    return audit(load_target(str(path)), Settings(precision=precision))


def as_a_reader(path, patch):
    """Return the case in a file after somebody has done what is printed, loop and precision left out."""
    case = load(path)
    if patch.startswith("---"):
        exec(compile(patched(path.read_text(), patch), str(path), "exec"), (names := {"__name__": "changed"}))
        return SimpleNamespace(**names)
    build = case.model

    def model():
        made = build()
        exec(patch.partition(LOOP)[0], {"model": made})
        return made

    case.model = model
    return case


@pytest.mark.parametrize("name", FILES)
def test_the_printed_fix_heals_by_hand(name, tmp_path):
    text, begins = FILES[name]
    (tmp_path / "net.py").write_text(text)
    torch.manual_seed(0)
    report = audited(tmp_path / "net.py")
    assert report.patch.startswith(begins)
    torch.manual_seed(0)
    with autocast_stands_in():
        done = run(as_a_reader(tmp_path / "net.py", report.patch), torch.float16, 8)
    assert not done.error
    assert not done.broken


#: Of the zoo: quick ones, most of which print a diff, some lines to paste, and one a line for the reader to change.
ZOO = """
    alibi_far_positions_bf16 attention_scaled_after_product banned_binary_cross_entropy box_decode_in_root
    codebook_squared_distance einsum_outside_autocast entropy_of_flushed_probability gram_before_division
    layernorm_var_overflow two_queues_written_in_place whitening_cholesky
""".split()


@pytest.mark.parametrize("name", ZOO)
def test_what_is_printed_for_a_case_of_the_zoo_heals_it_or_is_called_a_sketch(name):
    path = CASES / f"{name}.py"
    case = load(path)
    patch = audited(path, {"float16": "fp16", "bfloat16": "bf16"}[case.TRUTH["dtype"]]).patch
    assert patch
    if patch.startswith(SKETCH):
        assert name == "box_decode_in_root"
        return
    with autocast_stands_in():
        fixed = as_a_reader(path, patch)
        low = run(
            fixed,
            truth.dtype_of(case),
            truth.scale_of(case.TRUTH),
            watch=case.TRUTH["kind"] == "forward-overflow",
        )
    assert not truth.harmed(case, low, run(case))


BROKEN = (
    "--- a/net.py\n+++ b/net.py\n@@ -1 +1,3 @@\n import torch\n+class Other:\n+    pass\n",
    "--- a/net.py\n+++ b/net.py\n@@ -1 +1 @@\n-not in it\n+at all\n",
    "this is (no Python\n" + LOOP,
    "raise KeyError(model)\n" + LOOP,
    "loss_fn(model)\n" + LOOP,
    "model[1].forward = lambda x: x * x\n" + LOOP,
    "model[1] = None\n" + LOOP + "\nthis is (no Python",
)


def overflowing(tmp_path, by=900):
    (tmp_path / "net.py").write_text(HEAD + RMS + PLAIN + REST.replace("900", str(by)))
    target = load_target(str(tmp_path / "net.py"))
    return target, Lab(Step(target.model, target.batch(0), target.loss))


@pytest.mark.parametrize("form", BROKEN)
def test_what_fails_or_does_not_heal_is_a_sketch_and_the_model_is_as_it_was(form, tmp_path):
    target, lab = overflowing(tmp_path)
    kinds, held = [type(one) for one in target.model], [dict(vars(one)) for one in target.model]
    with target.active():
        patch = proved([form], Plan("fp16", ("1",)), target.file, lab)
    assert patch == SKETCH + form
    assert [type(one) for one in target.model] == kinds
    assert [dict(vars(one)) for one in target.model] == held


def test_the_first_form_that_heals_is_the_one_printed(tmp_path):
    target, lab = overflowing(tmp_path)
    heals = "model[1].forward = lambda x, f=model[1].forward: f(x.float())\n" + LOOP
    with target.active():
        assert proved([BROKEN[0], heals, "never"], Plan("fp16", ("1",)), target.file, lab) == heals
        assert proved([], Plan("fp16"), target.file, lab) == ""


@pytest.mark.parametrize(
    ("form", "lines"),
    [(BROKEN[0], ()), ("x = 1\n" + LOOP + "\nthis is (no Python", ()), ("x = 1\n" + LOOP, ("net.py:6",))],
    ids=["a class the model has none of", "a loop that is no Python", "a line for the reader to change"],
)
def test_a_step_that_is_well_without_it_does_not_prove_a_fix(form, lines, tmp_path):
    target, lab = overflowing(tmp_path, by=1)
    with target.active():
        assert proved([form], Plan("fp16", ("1",), lines), target.file, lab) == SKETCH + form


def test_a_file_is_not_run_again_for_its_fix(tmp_path, capsys):
    (tmp_path / "net.py").write_text(HEAD + "print('this file is run')\n" + RMS + PLAIN + REST)
    assert audited(tmp_path / "net.py").patch.startswith("---")
    assert capsys.readouterr().out.count("this file is run") == 1


def test_one_run_is_enough_where_the_first_form_heals(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(HEAD + RMS + PLAIN + REST)
    runs = []
    trial = Lab.trial
    monkeypatch.setattr(
        Lab, "trial", lambda lab, *given, **more: (runs.append(more), trial(lab, *given, **more))[1]
    )
    assert audited(tmp_path / "net.py").patch.startswith("---")
    assert sum("change" in more for more in runs) == 1
