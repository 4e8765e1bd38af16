"""Models without a batch: one is worked out, tried, and said; what `ampcheck init` writes runs as it is."""

from pathlib import Path

import pytest
import torch

from ampcheck.cli import main
from ampcheck.errors import TargetError
from ampcheck.saved.report_json import read
from ampcheck.targets import load
from ampcheck.targets.nested import tensors

HEAD = "import torch\nfrom torch import nn\n"
MODELS = {
    "pictures": (
        HEAD + "class Net(nn.Module):\n    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 4, 3)\n        self.fc = nn.Linear(4, num_classes)\n"
        "    def forward(self, images):\n        return self.fc(self.conv(images).mean((2, 3)))\n",
        [(8, 3, 32, 32), (8,)],
    ),
    "tokens and a mask": (
        HEAD + "class Net(nn.Module):\n    def __init__(self, vocab_size=50):\n        super().__init__()\n"
        "        self.emb = nn.Embedding(vocab_size, 8)\n        self.out = nn.Linear(8, 2)\n"
        "    def forward(self, ids, mask):\n"
        "        h = self.emb(ids) * mask.unsqueeze(-1)\n"
        "        return self.out(h.sum(1) / mask.sum(1, keepdim=True))\n",
        [(8, 16), (8, 16), (8, 2)],
    ),
    "timesteps and a class": (
        HEAD + "class Net(nn.Module):\n    def __init__(self, num_classes=7):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(1, 4, 3, padding=1)\n        self.y = nn.Embedding(num_classes, 4)\n"
        "        self.t, self.out = nn.Linear(1, 4), nn.Conv2d(4, 1, 1)\n"
        "    def forward(self, x, t, y):\n        b, c, h, w = x.shape\n"
        "        e = self.t(t.float().view(b, 1)) + self.y(y)\n"
        "        return self.out(self.conv(x) + e[:, :, None, None])\n",
        [(8, 1, 32, 32), (8,), (8,), (8, 1, 32, 32)],
    ),
    "a configuration": (
        HEAD
        + "from dataclasses import dataclass\n@dataclass\nclass Config:\n    width: int\n    out: int = 3\n"
        "class Net(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n"
        "        self.fc = nn.Linear(config.width, config.out)\n"
        "    def forward(self, x):\n        return self.fc(x)\n",
        [(8, 64), (8, 3)],
    ),
    "two vectors that are joined": (
        HEAD
        + "class Net(nn.Module):\n    def __init__(self, obs_dim=5, act_dim=2):\n        super().__init__()\n"
        "        self.q = nn.Linear(obs_dim + act_dim, 1)\n"
        "    def forward(self, obs, act):\n        return self.q(torch.cat([obs, act], 1))\n",
        [(8, 5), (8, 2), (8, 1)],
    ),
    "a graph with weighted edges": (
        HEAD + "class Net(nn.Module):\n    def __init__(self, num_features, hidden_channels, num_classes):\n"
        "        super().__init__()\n        self.a = nn.Linear(num_features, hidden_channels)\n"
        "        self.b = nn.Linear(hidden_channels, num_classes)\n"
        "    def forward(self, x, edge_index, edge_weight):\n        src, dst = edge_index\n        h = self.a(x)\n"
        "        h = torch.zeros_like(h).index_add(0, dst, h[src] * edge_weight[:, None])\n        return self.b(h)\n",
        [(128, 16), (2, 512), (512,), (128,)],
    ),
    "graphs in one object": (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Embedding(9, 4), nn.Embedding(3, 4)\n        self.out = nn.Linear(4, 1)\n"
        "    def forward(self, data):\n        x, (src, dst) = self.a(data.x), data.edge_index\n"
        "        x = x.index_add(0, dst, x[src] + self.b(data.edge_attr))\n"
        "        sums = torch.zeros(data.num_graphs, 4).index_add(0, data.batch, x)\n        return self.out(sums)\n",
        [(128,), (2, 512), (512,), (128,), (8, 1)],
    ),
    "a dense graph": (
        HEAD + "class Net(nn.Module):\n    def __init__(self, nfeat=5):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.randn(nfeat, 3))\n"
        "    def forward(self, x, adj):\n        return torch.spmm(adj, torch.mm(x, self.w))\n",
        [(128, 5), (128, 128), (128, 3)],
    ),
    "weights in half precision": (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.f = nn.Linear(6, 3)\n        self.half()\n    def forward(self, x):\n        return self.f(x)\n",
        [(8, 6), (8, 3)],
    ),
    "a dictionary": (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv, self.emb = nn.Conv2d(3, 4, 3), nn.Embedding(20, 4)\n"
        "    def forward(self, batch):\n        i = self.conv(batch['image']).mean((2, 3))\n"
        "        return i @ self.emb(batch['input_ids']).mean(1).T\n",
        [(8, 3, 32, 32), (8, 16), (8, 8)],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_and_a_loss_are_worked_out(tmp_path, monkeypatch, name):
    text, shapes = MODELS[name]
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(text)
    target = load("net.py")
    assert [tuple(part.shape) for part in tensors(target.batch(0))] == shapes
    loss = target.loss(target.model, target.batch(0))
    loss.backward()
    assert torch.isfinite(loss)
    assert target.stand_in_loss
    assert any("ampcheck init net.py:Net" in note for note in target.notes)


@pytest.mark.parametrize("name", MODELS)
def test_what_init_writes_loads_as_it_is(tmp_path, monkeypatch, capsys, name):
    text, shapes = MODELS[name]
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(text)
    assert main(["init", "net.py"]) == 0
    assert "ampcheck net_audit.py" in capsys.readouterr().out
    target = load("net_audit.py")
    assert [tuple(part.shape) for part in tensors(target.batch(0))] == shapes
    assert not target.stand_in_loss  # it is the user's from now on
    assert main(["init", "net.py"]) == 2  # and is not written over


def test_labels_that_a_forward_takes_give_the_models_own_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lm.py").write_text(
        HEAD + "class LM(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.emb, self.out = nn.Embedding(30, 8), nn.Linear(8, 30)\n"
        "    def forward(self, idx, targets=None):\n        logits = self.out(self.emb(idx))\n        loss = None\n"
        "        if targets is not None:\n"
        "            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
        "        return logits, loss\n"
    )
    target = load("lm.py")
    assert not target.stand_in_loss
    assert target.loss(target.model, target.batch(0)).ndim == 0


def test_the_samples_of_a_data_set_in_the_file_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data_net.py").write_text(
        HEAD + "class Points(torch.utils.data.Dataset):\n    def __init__(self, n=64):\n        self.n = n\n"
        "    def __len__(self):\n        return self.n\n"
        "    def __getitem__(self, i):\n        return torch.full((6,), float(i)), i % 3\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(6, 3)\n    def forward(self, x):\n        return self.fc(x)\n"
    )
    inputs, labels = load("data_net.py").batch(0)
    assert inputs[:, 0].tolist() == list(range(8))
    assert labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_several_models_are_asked_for_and_parts_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = "class Part(nn.Module):\n    def __init__(self, d): super().__init__(); self.f = nn.Linear(d, d)\n"
    part += "    def forward(self, x): return self.f(x)\n"
    one = "class {0}(nn.Module):\n    def __init__(self, d):\n        super().__init__(); self.p = Part(d)\n"
    one += "    def forward(self, x): return self.p(x)\n"
    Path("two.py").write_text(HEAD + part + one.format("A") + one.format("B"))
    with pytest.raises(
        TargetError, match=r"2 models found: A \(4,160 parameters\), B \(4,160 parameters\)"
    ) as asked:
        load("two.py")
    assert asked.value.hint == "ampcheck two.py:A\nampcheck two.py:B"
    assert type(load("two.py:B").model).__name__ == "B"
    Path("one.py").write_text(HEAD + part + one.format("A"))
    assert type(load("one.py").model).__name__ == "A"


NEVER_BUILT = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, in_dim, hidden):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    def forward(self, x): return self.f(x)
class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)
    def forward(self, x): return self.f(x)
"""
)
BUILT_IN_TRAIN = (
    NEVER_BUILT
    + """def train():
    net, other = Net(4, 8), Other()
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    for _ in range(3):
        net(other(torch.randn(2, 4))).square().mean().backward()
        optimizer.step()
    open("trained", "w").close()
if __name__ == "__main__":
    train()
"""
)


@pytest.mark.parametrize(
    ("text", "given", "size"),
    [
        (NEVER_BUILT, [], ""),
        (NEVER_BUILT, ["--input", "2,4"], ""),
        (BUILT_IN_TRAIN, ["--input", "2,4"], "67 parameters)"),  # of Net(4, 8)
    ],
    ids=["never built", "never built, a shape", "built in train(), a shape"],
)
def test_which_of_several_models_is_asked_for_where_an_input_has_a_shape_too(
    tmp_path, monkeypatch, capsys, text, given, size
):
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(text)
    assert main(["nets.py", *given]) == 2
    out, err = capsys.readouterr()
    assert not out
    question, *commands = err.splitlines()
    assert question.startswith(f"ampcheck: error: nets.py: 2 models found: Net ({size}")
    assert question.endswith(", Other (20 parameters); say which")
    assert commands == ["  ampcheck nets.py:Net", "  ampcheck nets.py:Other"]
    assert not Path("trained").exists()
    assert main([commands[1].split()[1], *given, "-o", "r.json"]) == 0  # what it asks for is then done
    assert [module.kind for module in read("r.json").reference.modules if not module.path] == ["Other"]


def test_what_cannot_be_worked_out_says_so_and_names_init(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(
        HEAD + "class Odd(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.w = nn.Parameter(torch.ones(3))\n"
        "    def forward(self, recipe):\n        return self.w * recipe['salt']['grams']\n"
    )
    with pytest.raises(TargetError, match=r"no batch could be worked out for forward\(recipe\)") as asked:
        load("odd.py")
    assert asked.value.hint == "ampcheck init odd.py:Odd"
    assert main(["init", "odd.py:Odd"]) == 0
    assert "write what forward takes as recipe" in Path("odd_audit.py").read_text()


def test_what_cannot_be_built_is_written_with_its_arguments_left_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(
        HEAD
        + "class Odd(nn.Module):\n    def __init__(self, tokenizer, width=8):\n        super().__init__()\n"
        "        self.f = nn.Linear(tokenizer.size, width)\n"
        "    def forward(self, tokens):\n        return self.f(tokens)\n"
    )
    with pytest.raises(TargetError, match="needs arguments that could not be worked out") as asked:
        load("odd.py")
    assert asked.value.hint == "ampcheck init odd.py:Odd"
    assert main(["init", "odd.py:Odd"]) == 0
    text = Path("odd_audit.py").read_text()
    assert "return Odd(tokenizer=...)" in text
    assert "write what forward takes as tokens" in text


def test_arguments_come_from_a_dictionary_that_another_file_spreads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        "from dataclasses import dataclass\n"
        + HEAD
        + "@dataclass\nclass Args:\n    dim: int\n    vocab: int = -1\n"
        "class LM(nn.Module):\n    def __init__(self, args: Args):\n        super().__init__()\n"
        "        self.emb, self.out = nn.Embedding(args.vocab, args.dim), nn.Linear(args.dim, args.vocab)\n"
        "    def forward(self, tokens):\n        return self.out(self.emb(tokens))\n"
    )
    Path("train.py").write_text(
        "from model import LM, Args\ndim, more = 12, {'vocab': 50}\nheld = dict(dim=dim)\n"
        "model = LM(Args(**held, **more))\n"
    )
    model = load("model.py").model
    assert (model.emb.num_embeddings, model.emb.embedding_dim) == (50, 12)


def test_a_module_without_parameters_is_no_model_to_ask_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = "class {0}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{1}"
    one += "    def forward(self, x): return {2}\n"
    own = "        self.f = nn.Linear(4, 4)\n"
    Path("net.py").write_text(
        HEAD + one.format("Net", own, "self.f(x)") + one.format("Matcher", "", "x.argmin()")
    )
    assert type(load("net.py").model).__name__ == "Net"


def test_a_script_that_trains_on_import_does_not_when_one_of_its_models_is_audited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(
        HEAD + "class Net(nn.Module):\n    def __init__(self): super().__init__(); self.f = nn.Linear(4, 2)\n"
        "    def forward(self, x): return self.f(x)\n"
        "gpu = torch.ones(1).to('nowhere')\nmodel = Net()\n"
        "for _ in range(3):\n    open('trained', 'w').close()\n    model(torch.ones(1, 4)).sum().backward()\n"
    )
    target = load("script.py:Net")
    assert type(target.model).__name__ == "Net"
    assert not Path("trained").exists()
    assert any("it was run up to line" in note for note in target.notes)
