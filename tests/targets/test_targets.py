"""Targets: what loads, what it holds, and what is said when it does not."""

import copy
import os
import random
import subprocess
import sys
import textwrap
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from ampcheck.errors import TargetError
from ampcheck.targets import Options, Target, load, parse_shape
from ampcheck.targets.nested import input_shapes, move, tensors
from ampcheck.targets.seeding import seeded
from ampcheck.targets.userfile import locate

HEAD = "import torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(3, width)

    def forward(self, x):
        return self.fc(x)
"""
BATCH = "batch = (torch.ones(5, 3), torch.tensor([0, 1, 2, 3, 0]))\n"
LOSS = "def loss(model, batch):\n    return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "model.py") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write


def step(target: Target, number: int = 0) -> torch.Tensor:
    with target.active():
        loss = target.loss(target.model, target.batch(number))
        loss.backward()
    return loss.detach()


def refusal(spec: str, **options) -> TargetError:
    with pytest.raises(TargetError) as caught:
        load(spec, Options(**options))
    return caught.value


# What a file may say.


def test_the_loss_of_a_file_is_what_its_own_functions_give(user_file):
    target = load(user_file(HEAD + NET + "model = Net()\n" + BATCH + LOSS))
    inputs, labels = torch.ones(5, 3), torch.tensor([0, 1, 2, 3, 0])
    expected = nn.functional.cross_entropy(inputs @ target.model.fc.weight.T + target.model.fc.bias, labels)
    torch.testing.assert_close(step(target), expected.detach())
    assert (target.name, target.file, target.stand_in_loss, target.notes) == (
        "model.py", Path("model.py").resolve(), False, (),
    )  # fmt: skip


def test_functions_and_seeds_of_the_file_are_respected(user_file):
    spec = user_file(
        HEAD + NET + LOSS + "def model():\n    torch.manual_seed(7)\n    return Net()\n"
        "def batch():\n    torch.manual_seed(8)\n    return torch.randn(2, 3), torch.tensor([1, 2])\n"
        "def optimizer(m):\n    return torch.optim.SGD(m.parameters(), lr=0.5)\n"
        "def after_step(m):\n    m.fc.bias.data.zero_()\n"
    )
    target = load(spec)
    torch.manual_seed(7)
    assert torch.equal(target.model.fc.weight, nn.Linear(3, 4).weight)
    torch.manual_seed(8)
    assert torch.equal(target.batch(0)[0], torch.randn(2, 3))
    before = target.model.fc.weight.clone()
    step(target)
    gradient = target.model.fc.weight.grad.clone()
    target.optimizer(target.model).step()
    assert torch.equal(target.model.fc.weight, before - 0.5 * gradient)
    target.after_step(target.model)
    assert torch.equal(target.model.fc.bias, torch.zeros(4))


def test_every_training_begins_with_the_optimizer_as_the_file_made_it(user_file):
    """FP32 was compared with a plan that had FP32's moments: Adam of a file kept its state between trainings."""
    spec = user_file(
        HEAD + NET + LOSS + "model = Net()\nbatch = torch.randn(2, 3), torch.tensor([1, 2])\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
    )
    target = load(spec)
    whole = copy.deepcopy(target.model.state_dict())
    found = []
    for _ in range(2):
        target.model.load_state_dict(whole)
        optimizer = target.optimizer(target.model)
        assert optimizer.param_groups[0]["lr"] == 0.1
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(float(step(target).detach()))
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.05  # as a schedule does
        found.append(losses)
    assert found[0] == found[1]
    assert len(optimizer.state) == 2
    assert not target.optimizer(target.model).state


def test_two_loads_are_bit_identical_and_leave_random_state_alone(user_file):
    spec = user_file(
        HEAD + NET + LOSS + "import random\nimport numpy as np\nmodel = Net()\n"
        "def batch():\n"
        "    return torch.randn(2, 3) + random.random() + float(np.random.rand()), torch.tensor([1, 2])\n"
    )
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second, other = load(spec), load(spec), load(spec, Options(seed=1))
    assert torch.equal(first.model.fc.weight, second.model.fc.weight)
    assert torch.equal(first.batch(0)[0], second.batch(0)[0])
    assert not torch.equal(first.model.fc.weight, other.model.fc.weight)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


@pytest.mark.parametrize(
    "maker",
    [
        "model = Net()",
        "net = Net()",
        "def build_model():\n    return Net()",
        "model = Net",
        "",
        "thing = Net()",
    ],
)
def test_a_model_is_found_under_each_name_or_alone(user_file, maker):
    target = load(user_file(HEAD + NET + maker + "\n" + BATCH + LOSS))
    assert type(target.model).__name__ == "Net"
    assert target.model.fc.weight.shape == (4, 3)


@pytest.mark.parametrize(
    "name", ["small", "Small", "make", "bundle", "namespace", "Bundle", "make_bundle", "holder.inner"]
)
def test_a_name_picks_a_model_a_factory_or_a_whole_target(user_file, name):
    own = "model=Net(2), batch=(torch.ones(1, 3), torch.tensor([1])), loss=loss"
    target = load(
        user_file(
            HEAD
            + NET
            + LOSS
            + "batch = (torch.ones(5, 3), torch.zeros(5).long())\nfrom types import SimpleNamespace\n"
            "class Small(Net):\n    def __init__(self):\n        super().__init__(2)\n"
            "small = Small()\nholder = SimpleNamespace(inner=small)\nmodel = Net(4)\n"
            "def make():\n    return Net(2)\n"
            f"bundle = dict({own})\nnamespace = SimpleNamespace({own})\n"
            f"def make_bundle():\n    return dict({own})\n"
            "class Bundle:\n    def model(self):\n        return Net(2)\n"
            "    def batch(self):\n        return torch.ones(1, 3), torch.tensor([1])\n"
            "    def loss(self, model, batch):\n        return loss(model, batch)\n"
        )
        + f":{name}"
    )
    assert target.model.fc.weight.shape == (2, 3)
    assert len(target.batch(0)[0]) == (1 if "undle" in name or name == "namespace" else 5)
    step(target)
    assert target.model.fc.weight.grad.abs().sum() > 0


def test_a_dotted_module_is_imported_from_the_current_folder(user_file):
    user_file("", "pkg_of_user/__init__.py")
    user_file(HEAD + NET + BATCH + LOSS, "pkg_of_user/nets.py")
    target = load("pkg_of_user.nets:Net")
    assert target.file == Path("pkg_of_user/nets.py").resolve()
    assert step(target).ndim == 0
    assert "pkg_of_user.nets" not in sys.modules


@pytest.mark.parametrize("spec", ["pack/inner/nets.py", "inner/nets.py", "nets.py"])
def test_a_file_of_a_package_can_import_relatively(user_file, monkeypatch, spec):
    user_file("from pack.inner import sizes\nOUT = sizes.OUT", "pack/__init__.py")
    user_file("", "pack/inner/__init__.py")
    user_file("OUT = 4", "pack/inner/sizes.py")
    user_file(HEAD + BATCH, "pack/data.py")
    user_file(
        "from .. import OUT\nfrom ..data import batch\nfrom .sizes import OUT as SAME\nimport sizes\n"
        f"{HEAD}{NET.replace('=4', '=OUT')}{LOSS}assert SAME == sizes.OUT == 4\n",
        "pack/inner/nets.py",
    )
    before = set(sys.modules), list(sys.path)
    folders = {"nets.py": "pack/inner", "inner/nets.py": "pack"}
    monkeypatch.chdir(folders.get(spec, "."))
    target = load(spec)
    assert step(target).ndim == 0
    assert (set(sys.modules), sys.path) == before


def test_a_function_that_calls_a_class_says_how_it_is_built(user_file):
    text = HEAD + NET.replace("width=4", "width") + BATCH + LOSS + "def small():\n    return Net(5)\n"
    target = load(user_file(text))
    assert target.model.fc.out_features == 5
    assert any("Net(5), as in line" in note for note in target.notes)


def test_a_proxy_around_a_model_stays_a_proxy(user_file):
    proxy = (
        "class Proxy:\n    def __init__(self, m):\n        self.m = m\n"
        "    def __call__(self, x):\n        return self.m(x)\n"
        "    def parameters(self):\n        return self.m.parameters()\n"
        "model = Proxy(Net())\n"
    )
    target = load(user_file(HEAD + NET + proxy + BATCH + LOSS))
    assert type(target.model).__name__ == "Proxy"
    step(target)
    assert target.model.m.fc.weight.grad is not None


@pytest.mark.parametrize(
    "criterion",
    [
        "criterion = nn.CrossEntropyLoss()",
        "loss_fn = nn.functional.cross_entropy",
        "loss_function = lambda out, y: nn.functional.cross_entropy(out, y)",
        "loss = nn.CrossEntropyLoss()",
        "criterion = nn.CrossEntropyLoss",
        "def loss_fn(model, batch):\n    return nn.functional.cross_entropy(model(batch[0]), batch[1])",
    ],
)
def test_a_criterion_gets_the_output_and_the_target(user_file, criterion):
    target = load(user_file(HEAD + NET + "model = Net()\n" + BATCH + criterion + "\n"))
    expected = nn.functional.cross_entropy(target.model(target.batch(0)[0]), target.batch(0)[1])
    assert torch.equal(step(target), expected.detach())
    assert not target.stand_in_loss


@pytest.mark.parametrize(
    ("forward", "batch"),
    [
        ("x, y", "batch = dict(x=torch.ones(2, 3), y=torch.zeros(2, 3), unused=1)"),
        ("x, y", "batch = torch.ones(2, 3), torch.zeros(2, 3)"),
        ("x, y=0", "x = torch.ones(2, 3)"),
    ],
)
@pytest.mark.parametrize(
    "output", ["{'loss': e.mean(), 'out': e}", "Out(e, e.mean())", "(e, e.mean())", "e.mean()"]
)
def test_the_loss_that_a_model_returns_is_used(user_file, forward, batch, output):
    net = (
        "from dataclasses import dataclass\n@dataclass\nclass Out:\n    e: object\n    loss: object\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.full((3,), 2.0))\n"
        f"    def forward(self, {forward}):\n        e = (self.w * x - y) ** 2\n        return {output}\n"
    )
    target = load(user_file(HEAD + net + batch + "\n"))
    assert not target.stand_in_loss
    assert step(target) == 4.0  # (2 * 1 - 0) ** 2


def test_a_dict_goes_in_whole_where_the_model_looks_its_keys_up_itself(user_file):
    net = NET.replace("self.fc(x)", "self.fc(x['a'] + x['b'])")
    batch = "batch = dict(a=torch.ones(2, 3), b=torch.ones(2, 3)), torch.tensor([0, 1])\n"
    target = load(user_file(HEAD + net + batch + "criterion = nn.CrossEntropyLoss()\n"))
    expected = nn.functional.cross_entropy(target.model.fc(torch.full((2, 3), 2.0)), torch.tensor([0, 1]))
    assert torch.equal(step(target), expected.detach())


def test_without_any_loss_a_stand_in_reaches_every_output_and_says_so(user_file):
    net = NET.replace(
        "return self.fc(x)", "return {'a': [self.fc(x)], 'n': 3, 'b': (x.long(), 2 * self.fc(x))}"
    )
    net = net.replace("super().__init__()", "super().__init__()\n        self.calls = []")
    net = net.replace("        return {", "        self.calls.append(1)\n        return {")
    target = load(user_file(HEAD + net + "x = torch.ones(5, 3)\n"))
    assert target.stand_in_loss
    assert any("gradient magnitudes" in note for note in target.notes)
    assert target.model.calls == []  # looking at the outputs has not touched the model
    out = target.model.fc(torch.ones(5, 3)).detach()
    torch.testing.assert_close(step(target), out.square().mean() + (2 * out).square().mean())


def test_a_list_is_several_batches_and_a_tuple_is_one(user_file):
    several = load(
        user_file(HEAD + NET + "batch = [(torch.full((1, 3), float(i)), i) for i in range(3)]\n" + LOSS)
    )
    assert [several.batch(i)[1] for i in range(5)] == [0, 1, 2, 0, 1]
    one = load(user_file(HEAD + NET + BATCH + LOSS))
    assert len(one.batches) == 1


def test_batches_come_from_a_loader_too(user_file):
    loader = "batches = torch.utils.data.DataLoader(torch.arange(12.0).reshape(4, 3), batch_size=2)\n"
    target = load(user_file(HEAD + NET + loader + "def loss(m, b):\n    return m(b).sum()\n"))
    assert [b.tolist() for b in target.batches] == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_an_unambiguous_pair_in_a_list_is_refused(user_file):
    error = refusal(
        user_file(HEAD + NET + "batch = [torch.ones(5, 3), torch.tensor([0, 1, 2, 3, 0])]\n" + LOSS)
    )
    assert "several batches" in str(error)
    assert error.hint == "batch = tuple(batch)"


def test_a_batch_size_reaches_the_function_that_takes_one(user_file):
    spec = user_file(
        HEAD
        + NET
        + LOSS
        + "def batch(batch_size=2):\n    return torch.ones(batch_size, 3), torch.zeros(batch_size).long()\n"
    )
    assert len(load(spec).batch(0)[0]) == 2
    assert len(load(spec, Options(batch_size=6)).batch(0)[0]) == 6
    fixed = refusal(user_file(HEAD + NET + BATCH + LOSS), batch_size=6)
    assert "does not take batch_size" in str(fixed)


def test_an_input_shape_replaces_a_missing_batch(user_file):
    spec = user_file(HEAD + NET)
    target = load(spec, Options(input_shape=(6, 3)))
    assert target.batch(0).shape == (6, 3)
    words = load(user_file(HEAD + "model = nn.Embedding(11, 2)\n"), Options(input_shape=(2, 50)))
    assert words.batch(0).dtype == torch.int64
    assert 0 <= int(words.batch(0).min()) <= int(words.batch(0).max()) < 11
    assert "its own batch" in str(refusal(user_file(HEAD + NET + BATCH), input_shape=(6, 3)))


def test_the_mode_of_a_users_model_is_left_alone(user_file):
    target = load(user_file(HEAD + NET + "model = Net().eval().requires_grad_(False)\n" + BATCH + LOSS))
    assert not target.model.training
    assert not target.model.fc.weight.requires_grad


# Importing.


def test_siblings_are_importable_while_active_and_forgotten_after(user_file):
    user_file("VALUE = 3.0\n", "sibling_of_user.py")
    user_file("VALUE = 5.0\n", "late_sibling_of_user.py")
    spec = user_file(
        HEAD + NET + BATCH + "from sibling_of_user import VALUE\nfrom dataclasses import dataclass\n"
        "import sys\nsys.path.insert(0, 'elsewhere')\n"
        "@dataclass\nclass Config:\n    width: 'int' = 4\n"
        "def loss(m, b):\n    import late_sibling_of_user as late\n"
        "    assert 'elsewhere' in sys.path\n"
        "    return m(b[0]).sum() * 0 + VALUE + late.VALUE\n"
    )
    path, modules = list(sys.path), set(sys.modules)
    target = load(spec)
    assert sys.path == path
    assert step(target) == 8.0
    assert step(target) == 8.0
    assert sys.path == path
    assert {m for m in sys.modules if "user" in m or "ampcheck_target" in m} <= modules


def test_folders_with_siblings_of_one_name_do_not_mix(user_file):
    text = (
        HEAD
        + NET
        + BATCH
        + "def loss(m, b):\n    from same_sibling import V\n    return m(b[0]).sum() * 0 + V\n"
    )
    for folder, value in (("one", 1.0), ("two", 2.0)):
        user_file(text, f"{folder}/model.py")
        user_file(f"V = {value}\n", f"{folder}/same_sibling.py")
    targets = [load("one/model.py"), load("two/model.py")]
    assert [float(step(target)) for target in (*targets, *targets)] == [1.0, 2.0, 1.0, 2.0]


def test_main_is_not_run_and_nothing_is_written_beside_the_file(user_file, tmp_path):
    load(user_file(HEAD + NET + BATCH + LOSS + "if __name__ == '__main__':\n    raise RuntimeError\n"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.py"]


# What is said.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\nx = (\n", "model.py:2: SyntaxError: '(' was never closed"),
        ("import torch\n\nimport not_there_at_all\n", "model.py:3: ModuleNotFoundError: No module"),
        (HEAD + "def f():\n    raise ValueError('boom')\nf()\n", "model.py:4: ValueError: boom"),
        (HEAD + "model = nn.Linear(2, 'a')\n", "model.py:3: TypeError: "),
        (HEAD + "def model():\n    return nn.Linear(2, 2, nope=1)\n", "model.py:4: TypeError: "),
        (HEAD + NET + "def batch():\n    return torch.ones(3) @ torch.ones(2)\n", "model.py:12: Runtime"),
        (HEAD + NET + "x = torch.ones(2, 5)\n", "model.py:10: RuntimeError: "),
        ("import sys\nsys.exit(3)\n", "model.py:2: the file calls exit(3) on import"),
        (HEAD + NET + "class Other(Net):\n    pass\n", "model.py: 2 models found: Net (16 parameters), Other (16"),
        (HEAD + "def model(depth):\n    pass\n", "model.py:3: model needs arguments"),
        (HEAD + "def model():\n    return 3\n", "model.py: expected model() to return an nn.Module, got int"),
        (HEAD + NET + BATCH + "loss = 3.0\n", "model.py: expected loss to be a function of (model, ba"),
        (HEAD + NET + BATCH + "def loss(b):\n    pass\n", "model.py:12: expected loss to take (model, b"),
        (HEAD + NET + "x = torch.ones(2, 3)\ncriterion = nn.MSELoss()\n", "expected an (input"),
        (HEAD + NET + "batch = []\n" + LOSS, "model.py: expected at least one batch in batch, got none"),
    ],
)  # fmt: skip
def test_errors_point_at_the_users_line(user_file, text, message):
    error = refusal(user_file(text))
    assert str(error).startswith(message)
    assert "\n" not in str(error)
    assert not [name for name in sys.modules if name.startswith("ampcheck_target")]


def test_an_error_in_a_sibling_points_there(user_file):
    user_file("\n\nraise KeyError('k')\n", "broken_sibling.py")
    assert str(refusal(user_file("import broken_sibling\n"))) == "broken_sibling.py:3: KeyError: 'k'"


def test_a_file_that_is_not_utf8_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latin.py").write_bytes(b"name = '\xe9'\n")
    assert "SyntaxError" in str(refusal("latin.py"))
    Path("latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    assert "no model found" in str(refusal("latin.py"))


def test_ctrl_c_passes_through_and_leaves_nothing(user_file):
    path = list(sys.path)
    with pytest.raises(KeyboardInterrupt):
        load(user_file("raise KeyboardInterrupt\n"))
    assert sys.path == path
    assert not [name for name in sys.modules if name.startswith("ampcheck_target")]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("modle.py", "no such file: 'modle.py'; did you mean model.py?"),
        ("missing/model.py", "no such file: 'missing/model.py'"),
        ("resnet18", "no such file: 'resnet18'"),
        (".", "got the folder '.'"),
        ("report.json", "expected a Python file, got 'report.json'"),
        ("no_such_package_here:x", "no module named 'no_such_package_here'"),
        ("model.py:Nett", "model.py: no 'Nett' in it; did you mean Net"),
        ("model.py:width", "model.py: expected width to be a model"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'; did you mean resnet"),
        ("torchvision:quantized_resnet18", "audit torchvision:resnet18"),
        ("timm:resnet19x", "timm has no model 'resnet19x'; did you mean resnet"),
        ("transformers:brt", "transformers has no model type or class 'brt'; did you mean "),
        ("transformers:llama", "6.7 billion parameters by default"),
    ],
)
def test_a_spec_that_names_nothing_is_answered_with_what_is_near(user_file, spec, message):
    if spec.partition(":")[0] in ("torchvision", "timm", "transformers"):
        pytest.importorskip(spec.partition(":")[0])
    user_file(HEAD + NET + BATCH + LOSS + "width = 3\n")
    assert message in str(refusal(spec))


def test_a_wrong_file_name_is_answered_without_loading_torch(tmp_path):
    code = (
        "import sys\nfrom ampcheck.targets import load\n"
        "try:\n    load('nope.py')\n"
        "except Exception as e:\n    print(type(e).__name__, 'torch' in sys.modules)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["TargetError", "False"]


def test_locate_names_the_innermost_line_of_the_user(user_file):
    target = load(user_file(HEAD + NET + "x = torch.ones(2, 3)\ndef loss(m, b):\n    return m(b.T).sum()\n"))
    with target.active(), pytest.raises(RuntimeError) as caught:
        target.loss(target.model, target.batch(0))
    assert locate(caught.value, target.file) == "model.py:10"


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_said(user_file, device):
    assert device in str(refusal(user_file(HEAD + NET + BATCH + LOSS), device=device))


# Shapes and nests.


@pytest.mark.parametrize(
    ("text", "shape"),
    [("8x3x64x64", (8, 3, 64, 64)), ("3,64,64", (3, 64, 64)), ("(2, 5)", (2, 5)), ("7", (7,))],
)
def test_shapes_are_read(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "8x", "0x3", "-1,2", "axb", "1.5x2", "8x3y4"])
def test_what_is_not_a_shape_is_refused(text):
    with pytest.raises(TargetError, match="8x3x64x64"):
        parse_shape(text)


@dataclass(frozen=True)
class Pair:
    a: torch.Tensor
    rest: list[torch.Tensor]


class Named(NamedTuple):
    u: object
    v: object


def test_moving_keeps_structure_and_reaches_every_tensor():
    one = torch.ones(2)
    packed = nn.utils.rnn.pack_sequence([torch.ones(3)])
    batch = {
        "a": [one, (one, "text")],
        "n": Named(one, None),
        "d": Pair(one, [one]),
        "u": UserDict(x=one),
        "p": packed,
    }
    moved = move(batch, "meta")
    packed = moved.pop("p")
    assert (packed.data.device.type, packed.batch_sizes.device.type) == ("meta", "cpu")
    assert [t.device.type for t in tensors(moved)] == ["meta"] * 6
    assert {t.device.type for t in tensors(batch)} == {"cpu"}
    assert isinstance(moved["n"], Named)
    assert isinstance(moved["d"], Pair)
    assert isinstance(moved["u"], UserDict)
    assert moved["a"][1][1] == "text"


def test_input_shapes_are_written_as_a_person_would():
    assert input_shapes((torch.ones(2, 3), {"y": torch.tensor(1)})) == ("2x3 float32", "scalar int64")


# Weights.


def saved(kind: str, state: dict[str, torch.Tensor]) -> Path:
    path = Path("w.safetensors" if kind == "safetensors" else "w.pt")
    if kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    elif kind == "plain":
        torch.save(state, path)
    elif kind == "nested":
        torch.save({"epoch": 3, "state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        torch.save({"model": {f"_orig_mod.module.{key}": value for key, value in state.items()}}, path)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "plain", "nested", "wrapped"])
def test_weights_arrive_bit_for_bit(user_file, kind):
    spec = user_file(HEAD + NET + BATCH + LOSS)
    state = {"fc.weight": torch.randn(4, 3), "fc.bias": torch.randn(4)}
    target = load(spec, Options(weights=saved(kind, state)))
    assert torch.equal(target.model.fc.weight, state["fc.weight"])
    assert torch.equal(target.model.fc.bias, state["fc.bias"])


def test_tied_weights_may_be_stored_once(user_file):
    tied = "model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))\n"
    tied += "model[1].weight = model[0].weight\n"
    spec = user_file(HEAD + tied + "batch = torch.arange(5)\n")
    state = {"0.weight": torch.randn(5, 3)}
    target = load(spec, Options(weights=saved("plain", state)))
    assert torch.equal(target.model[1].weight, state["0.weight"])


def test_weights_that_do_not_fit_are_listed(user_file):
    spec = user_file(HEAD + NET + BATCH + LOSS)
    state = {"fc.weight": torch.randn(4, 7), "head.bias": torch.randn(4)}
    message = str(refusal(spec, weights=saved("plain", state)))
    assert "1 missing: fc.bias" in message
    assert "1 unexpected: head.bias" in message
    assert "fc.weight is (4, 7), expected (4, 3)" in message


@pytest.mark.parametrize(
    "spec", ["torchvision:squeezenet1_1", "timm:test_resnet.r160_in1k", "transformers:albert"]
)
def test_weights_of_a_file_are_not_called_random(user_file, spec):
    pytest.importorskip(spec.partition(":")[0])
    random = load(spec, Options(small=True, batch_size=2))
    state = {key: value.clone() + 1 for key, value in random.model.state_dict().items()}
    given = load(spec, Options(small=True, batch_size=2, weights=saved("plain", state)))
    assert "weights are random (--weights FILE loads yours)" in random.notes
    assert "weights are those of w.pt" in given.notes
    assert not [note for note in given.notes if "random (" in note]


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trap_was_run"),))


def test_pickled_objects_are_refused_and_never_run(user_file):
    spec = user_file(HEAD + NET + BATCH + LOSS)
    torch.save({"state_dict": Trap()}, "trap.pt")
    error = refusal(spec, weights=Path("trap.pt"))
    assert "pickles are never run" in str(error)
    assert not Path("trap_was_run").exists()
    assert "no such file: 'gone.pt'" in str(refusal(spec, weights=Path("gone.pt")))


# Zoos.


def parameters(target: Target) -> int:
    return sum(p.numel() for p in target.model.parameters())


@pytest.mark.parametrize(
    ("spec", "count"),
    [  # as published with the weights of torchvision and timm
        ("torchvision:resnet18", 11_689_512),
        ("torchvision:squeezenet1_1", 1_235_496),
        ("torchvision:mobilenet_v3_small", 2_542_856),
        ("timm:resnet18", 11_689_512),
        ("timm:mobilenetv3_small_100", 2_542_856),
    ],
)
def test_models_of_the_zoos_have_the_published_size_and_train(spec, count):
    pytest.importorskip(spec.partition(":")[0])
    target = load(spec, Options(small=True, batch_size=2))
    assert parameters(target) == count
    assert target.model.training
    assert step(target).isfinite()
    assert all(p.grad is not None for p in target.model.parameters())
    assert not target.stand_in_loss
    assert any("random" in note for note in target.notes)


@pytest.mark.parametrize("spec", ["torchvision:resnet18", "timm:resnet18", "transformers:bert"])
def test_loading_a_name_twice_gives_the_same_bits(spec):
    pytest.importorskip(spec.partition(":")[0])
    first, second = (load(spec, Options(small=True)) for _ in range(2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    )
    assert all(
        torch.equal(a, b) for a, b in zip(tensors(first.batch(0)), tensors(second.batch(0)), strict=True)
    )


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (Options(), (4, 3, 224, 224)),
        (Options(input_shape=(32, 48)), (4, 3, 32, 48)),
        (Options(input_shape=(3, 32, 32), batch_size=2), (2, 3, 32, 32)),
        (Options(input_shape=(5, 3, 32, 32)), (5, 3, 32, 32)),
    ],
)
@pytest.mark.parametrize("zoo", ["torchvision", "timm"])
def test_inputs_of_the_zoos_have_the_shape_that_was_asked_for(zoo, options, shape):
    pytest.importorskip(zoo)
    images, labels = load(f"{zoo}:resnet18", options).batch(0)
    assert images.shape == shape
    assert labels.shape == shape[:1]


def test_a_batch_size_that_contradicts_the_input_is_refused():
    pytest.importorskip("torchvision")
    assert "disagree" in str(refusal("torchvision:resnet18", batch_size=3, input_shape=(2, 3, 32, 32)))


def test_a_detector_is_trained_on_all_its_losses():
    pytest.importorskip("torchvision")
    target = load("torchvision:ssdlite320_mobilenet_v3_large", Options(batch_size=2))
    assert parameters(target) == 3_440_060  # as published
    images, targets = target.batch(0)
    assert [set(t) for t in targets] == [{"boxes", "labels"}] * 2
    assert all((t["boxes"][:, 2:] > t["boxes"][:, :2]).all() and t["boxes"].max() <= 320 for t in targets)
    with seeded(0):
        loss = target.loss(target.model, (images, targets))
    with seeded(0):
        again = target.model(images, targets)
    assert set(again) == {"bbox_regression", "classification"}
    torch.testing.assert_close(loss, sum(again.values()), rtol=1e-3, atol=1e-3)


def test_auxiliary_heads_take_part_in_the_loss():
    pytest.importorskip("torchvision")
    target = load("torchvision:googlenet", Options(small=True, batch_size=2))
    step(target)
    assert target.model.aux1.fc2.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("bert", {"input_ids", "attention_mask", "labels"}),
        ("gpt2", {"input_ids", "attention_mask", "labels"}),
        ("t5", {"input_ids", "attention_mask", "labels"}),
        ("llama", {"input_ids", "attention_mask", "labels"}),
        ("vit", {"pixel_values", "labels"}),
        ("clip", {"input_ids", "attention_mask", "pixel_values", "return_loss"}),
        ("wav2vec2", {"input_values", "labels"}),
        ("BertForQuestionAnswering", {"input_ids", "attention_mask", "start_positions", "end_positions"}),
    ],
)
def test_transformers_train_on_their_own_loss(name, inputs):
    pytest.importorskip("transformers")
    target = load(f"transformers:{name}", Options(small=True))
    assert set(target.batch(0)) == inputs
    assert parameters(target) < 2_000_000
    with seeded(0):
        loss = step(target)
    with seeded(0):  # speech models draw their masks from numpy
        own = target.model(**target.batch(0)).loss
    assert torch.equal(loss, own.detach())
    assert loss.isfinite()
    assert not target.stand_in_loss


def test_a_bare_transformer_has_a_stand_in_loss():
    pytest.importorskip("transformers")
    target = load("transformers:BertModel", Options(small=True))
    assert target.stand_in_loss
    assert step(target) > 0


def test_text_has_the_shape_that_was_asked_for():
    pytest.importorskip("transformers")
    target = load("transformers:gpt2", Options(small=True, input_shape=(3, 17)))
    assert target.batch(0)["input_ids"].shape == (3, 17)


def test_the_default_configuration_is_the_published_one():
    pytest.importorskip("transformers")
    assert parameters(load("transformers:distilbert")) == 66_985_530  # DistilBertForMaskedLM, base
