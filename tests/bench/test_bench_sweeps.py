"""Sweeps over the optimizer, attention, CUDA graphs, GradScaler and ranks: what each does, by another witness."""

import contextlib
import json
import sys

import forked
import pytest
import torch
from bench_models import perceptron
from test_bench_plugin import TARGET
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.bench.request import Request, scaler_of
from ampcheck.bench.result import Bench, Case
from ampcheck.bench.roofline import constants, gpu, step_time
from ampcheck.bench.running import ranks
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.graphs import WARM_UP
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.predict import predict
from ampcheck.bench.running.settings import compiled, put, scaled
from ampcheck.cli import bench_sweep, main
from ampcheck.observe.step import StepRaised
from ampcheck.targets.spec import Target

SIDE = 256
WEIGHT = SIDE * SIDE * 4


def four_layers():
    model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(4)))
    loss = lambda model, batch: model(batch).sum()  # noqa: E731
    return Target("four", model, [torch.randn(1, SIDE)], loss, lambda m: torch.optim.Adam(m.parameters()))


@pytest.mark.parametrize(("kind", "temporaries"), [("fused", 0), ("forloop", 3), ("foreach", 4)])
def test_forms_of_adam_need_the_temporaries_that_a_hand_counts(kind, temporaries):
    """Beside weights, gradients and two moments: none; a root, its quotient and the last weight's; a root for each."""
    target = lambda: put(four_layers(), Case(1, optimizer=kind))  # noqa: E731
    peak = predict(target, precision("fp32")).split.peak_bytes
    assert peak == pytest.approx((16 + temporaries) * WEIGHT, rel=0.01)


def test_every_form_of_an_optimizer_trains_to_the_same():
    losses = {}
    for kind in ("", "fused", "foreach", "forloop"):
        arm = Arm(put(perceptron(), Case(16, optimizer=kind)), precision("amp"))
        group = arm.optimizer.param_groups[0]
        assert (group["fused"] or False, group["foreach"] or False) == (kind == "fused", kind == "foreach")
        assert group["lr"] == 1e-2, "the target's own settings are kept"
        with arm.running():
            losses[kind] = [float(arm.train().detach()) for _ in range(4)]
    assert all(found == pytest.approx(losses[""], rel=1e-3) for found in losses.values())


def test_an_optimizer_without_a_form_is_refused():
    own = lambda model: torch.optim.LBFGS(model.parameters())  # noqa: E731
    with pytest.raises(StepRaised, match="LBFGS has none"):
        Arm(put(perceptron(optimizer=own), Case(16, optimizer="fused")), precision("fp32"))


HEADS, LENGTH = 2, 64


def attention():
    heads = nn.Linear(8, 3 * 8)

    def loss(model, batch):
        query, key, value = model(batch).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(query, key, value).sum()

    return Target("attention", heads, [torch.randn(1, HEADS, LENGTH, 8)], loss)


def test_the_backend_of_attention_decides_what_is_kept_for_the_backward():
    """A fused kernel keeps no scores; the plain one keeps all of them, heads times length times length."""
    found = {
        backend: predict(
            lambda backend=backend: put(attention(), Case(1, attention=backend)), precision("fp32")
        )
        for backend in ("flash", "math")
    }
    fused = {name: any("scaled_dot_product" in op.op for op in one.work) for name, one in found.items()}
    assert fused == {"flash": True, "math": False}
    more = found["math"].split.peak_bytes - found["flash"].split.peak_bytes
    assert more >= HEADS * LENGTH * LENGTH * 4


def test_a_mode_reaches_the_compiler(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: asked.append(mode) or model)
    cases = [*Request(compiled=("off", "on", "max-autotune")).cases()]
    assert [case.key for case in cases] == ["batch 0", "batch 0, compiled", "batch 0, compiled max-autotune"]
    for case in cases:
        compiled(perceptron(), case)
    assert asked == [None, "max-autotune"]


def test_the_scaler_starts_and_grows_as_the_case_says():
    assert scaler_of("65536") == (65536.0, 2000)
    chosen = scaled(precision("amp"), Case(16, scaler="2^10/3"))
    arm = Arm(perceptron(), chosen)
    scales = []
    with arm.running():
        for _ in range(7):
            scales.append(arm.scaler.get_scale())
            arm.train()
    assert scales == [1024.0] * 3 + [2048.0] * 3 + [4096.0]
    assert scaled(precision("bf16"), Case(16, scaler="2^10/3")) == precision("bf16"), "it has no scaler"


class Recorded(TorchDispatchMode):
    """A simulated CUDA graph: its operations run again on the same storages."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, out in self.calls:
            again = tree_leaves(func(*args, **kwargs))
            for old, new in zip(tree_leaves(out), again, strict=True):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.detach().copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    made = []
    stream = type("Stream", (), {"wait_stream": lambda self, other: None})
    for name, stand_in in {
        "CUDAGraph": lambda: made.append(Recorded()) or made[-1], "graph": lambda graph: graph, "Stream": stream,
        "current_stream": stream, "stream": lambda _: contextlib.nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made


@pytest.mark.parametrize("name", ["fp32", "amp"])
def test_a_captured_step_trains_as_the_step_itself_does(name, graphs):
    """The graph is simulated; a real one needs a GPU."""
    batches = [perceptron(seed=seed).batches[0] for seed in range(3)]
    losses = {}
    for graphed in (False, True):
        target = perceptron()
        arm = Arm(
            Target("p", target.model, batches, target.loss, target.optimizer),
            precision(name),
            graphed=graphed,
        )
        forwards = []
        target.model.register_forward_hook(lambda *_, seen=forwards: seen.append(1))
        with arm.running():
            losses[graphed] = [float(arm.train().detach()) for _ in range(6)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert len(graphs) == 1
    assert len(forwards) == WARM_UP + 1, "further steps replay what was captured"


def test_a_graph_leaves_the_host_the_update_alone():
    work = predict(perceptron, precision("amp")).work
    step = step_time(work, gpu("a100-80g"), constants())
    update = step_time([op for op in work if op.phase == "update"], gpu("a100-80g"), constants())
    assert step.seconds == step.host > step.device
    assert step.graphed().host == pytest.approx(update.host)
    assert step.graphed().seconds == max(step.device, step.graphed().host) < step.seconds


def test_on_a_cpu_graphs_are_not_timed_and_the_row_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", forked.executable())  # of torchrun and of its ranks
    (tmp_path / "net.py").write_text(TARGET)
    words = ["--parts", "time,memory", "--budget", "0.1", "--precisions", "fp32,amp", "--cuda-graphs", "on"]
    assert main(["bench", "net.py", *words, "--gpu", "a100-80g"]) == 0
    (case,) = json.loads((tmp_path / "reports" / "net.json").read_text())["cases"]
    assert [(row["message"], row["time"]) for row in case["rows"]] == [
        ("CUDA graphs need a GPU: not timed", None)
    ] * 2
    assert all(row["gpu_times"] for row in case["rows"])


@pytest.mark.parametrize(
    "words",
    [["--scaler", "0/3"], ["--scaler", "big"], ["--compile", "fast"], ["--sdpa", "none"], ["--ranks", "0"]],
)
def test_a_setting_that_is_none_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "net.py", *words])
    assert "expected" in capsys.readouterr().err


@pytest.fixture
def one_rank(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    ranks.Joined.yes = True
    yield
    ranks.Joined.yes = False
    distributed.destroy_process_group()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", ["fp32", "bf16", "amp"])
def test_a_rank_trains_as_one_process_does(parallel, name, one_rank):
    """FSDP2's own policy computes in low precision without autocast; a group of one reduces nothing."""
    plain, seen = Arm(perceptron(), precision(name)), set()
    target, chosen = ranks.shared(perceptron(), Case(16, ranks=2, parallel=parallel), precision(name))
    first = next(module for module in target.model.modules() if isinstance(module, nn.Linear))
    first.register_forward_hook(lambda module, _, out: seen.add((module.weight.dtype, out.dtype)))
    arm = Arm(target, chosen)
    assert (chosen.dtype is None) == (parallel == "fsdp2" or name == "fp32")
    losses = []
    for one in (plain, arm):
        with one.running():
            losses.append([float(one.train().detach()) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if name == "fp32" else 1e-2)
    low = {"fp32": torch.float32, "bf16": torch.bfloat16, "amp": torch.float16}[name]
    assert seen == {(low if parallel == "fsdp2" else torch.float32, low)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.line(self.norm(x))


@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", ["fp32", "bf16", "amp"])
def test_a_file_with_blocks_and_an_optimizer_of_its_own_trains_on_a_rank(parallel, name, one_rank):
    """FSDP2 gives a model new parameters; the update of the old ones was timed, which nobody computes."""

    def target():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Block(), Block()), nn.Linear(8, 2))
        made = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return Target("file", model, [torch.ones(16, 4)], lambda m, b: m(b).square().mean(), lambda _: made)

    plain = Arm(target(), precision(name))
    arm = Arm(*ranks.shared(target(), Case(16, ranks=2, parallel=parallel), precision(name)))
    losses = []
    for one in (plain, arm):
        with one.running():
            losses.append([float(one.train().detach()) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if name == "fp32" else 2e-2)
    assert losses[1][-1] < losses[1][0] / 2
    assert {id(held) for held in arm.parameters} == {
        id(held) for group in arm.optimizer.param_groups for held in group["params"]
    }


@pytest.mark.slow
def test_ranks_are_launched_timed_together_and_one_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", forked.executable())  # of torchrun and of its ranks
    (tmp_path / "net.py").write_text(TARGET)
    words = ["--parts", "time,memory", "--budget", "0.2", "--precisions", "fp32,bf16", "--ranks", "1,2"]
    assert main(["bench", "net.py", *words, "--parallel", "ddp,fsdp2"]) == 0
    cases = json.loads((tmp_path / "reports" / "net.json").read_text())["cases"]
    assert [(case["ranks"], case["parallel"]) for case in cases] == [(1, ""), (2, "ddp"), (2, "fsdp2")]
    for case in cases:
        assert [row["precision"] for row in case["rows"] if row["time"]] == ["fp32", "bf16"]
        assert all(row["memory"]["cpu_peak"] for row in case["rows"])
    assert all(any("ranks:" in note for note in case["notes"]) for case in cases[1:])


def test_ranks_that_fail_are_a_row_that_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(TARGET)
    monkeypatch.setattr(ranks.sys, "executable", "/bin/false")
    words = ["--parts", "time", "--precisions", "fp32,amp", "--ranks", "2"]
    assert main(["bench", "net.py", *words, "--min-speedup", "0.1"]) == 1
    assert "the speed of amp cannot be judged" in capsys.readouterr().out


def test_a_rank_is_asked_for_the_batch_that_was_asked_for(monkeypatch):
    """A target with one batch takes no other size, and every rank of it failed."""
    asked, words = [], []

    def launch(case):
        asked.append(case.batch_size)
        return case

    monkeypatch.setattr(ranks, "launched", lambda own, case: words.append(own) or case)
    for sizes in ((None,), (8, 16)):
        request = Request(("amp",), ("time",), batch_sizes=sizes, ranks=(2,))
        Bencher(lambda size, seed: perceptron(size or 4), request, launch=launch).run(Bench("net"))
        for size in asked:
            bench_sweep.launched(["bench", "net.py"], Case(size, ranks=2))
    assert asked == [0, 8, 16]
    assert "--batch-sizes=8" in words[-2]
    assert not any("--batch-sizes" in word for word in words[0])


def test_what_a_rank_printed_first_says_why_it_failed():
    printed = """
    loading net.py
    Traceback (most recent call last):
      File "net.py", line 3, in <module>
    ValueError: no room
    torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
    rank : 0 (local_rank: 0)
    """
    assert ranks._reason(printed) == "ValueError: no room"
    assert ranks._reason("loading\nampcheck: error: net.py: gone\n") == "ampcheck: error: net.py: gone"
    assert ranks._reason("a\n\nb\n") == "a b"
