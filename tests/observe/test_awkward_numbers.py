"""Awkward but legal models: modules, lines and numbers are right, each by a second way to know them."""

import warnings
from typing import Any

import pytest
import torch
from awkward_autograd import checkpointed
from awkward_models import Net, total
from awkward_runs import CASES, ran, recorded, report
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.recorder import Recorder
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, Trace


def modules_running(name: str, op: str, phase: Phase = Phase.FORWARD) -> set[str]:
    return {site.module for site in ran(report(name).reference, op=op, phase=phase)}


@pytest.mark.parametrize(
    ("name", "op", "modules"),
    [
        ("dict_output", "mul", {""}),
        ("none_output", "mul", {"silent"}),
        ("kwargs_only", "add_", {"inner"}),
        ("data_parallel", "addmm", {"fc1", "fc2"}),
        ("proxy", "addmm", {"fc1", "fc2"}),
        ("function", "addmm", {"fc1", "fc2"}),
        ("function", "mul", {""}),
        ("two_modules_side_by_side", "addmm", {"encoder.fc1", "encoder.fc2", "decoder"}),
        ("overrides_call", "addmm", {"direct.fc1", "direct.fc2", ""}),
        ("overrides_call", "relu", {""}),
        ("overrides_train_and_getattr", "native_batch_norm", {"bn"}),
        ("compiled", "addmm", {"body.fc1", "body.fc2", "head"}),
        ("scripted", "tanh", {"part"}),
        ("transforms", "mm", {"fc1"}),
        ("transforms", "addmm", {"fc2"}),
        ("transforms", "sin", {""}),
        ("shared_and_tied", "relu", {"first"}),
        ("threads", "addmm", {"fc1"}),
        ("recurrent", "addmm", {"fc", "lstm", "gru"}),
        ("inference_parts", "addmm", {"fc1", "fc2"}),
        ("checkpoint_reentrant", "tanh", {"1", "2"}),
        ("checkpoint_non_reentrant", "tanh", {"1", "2"}),
    ],
)
def test_operations_belong_to_the_module_whose_forward_holds_them(name, op, modules):
    found = modules_running(name, op)
    assert found == modules or (
        op == "native_batch_norm"
        and {s.module for s in report(name).reference.sites if "batch_norm" in s.op} == modules
    )


def test_modules_keep_all_their_names():
    info = {module.path: module for module in report("shared_and_tied").low.modules}
    assert info["first"].aliases == ("again",)
    assert info["first"].calls == 2
    assert info["first.fc1"].aliases == ("again.fc1",)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_counted_once_and_marked(reentrant):
    name = f"checkpoint_{'reentrant' if reentrant else 'non_reentrant'}"
    trace, _ = recorded(name, None)
    CASES["plain"] = lambda: checkpointed(reentrant=None)
    try:
        plain, _ = recorded("plain", None)
    finally:
        del CASES["plain"]

    def by_module(trace: Trace, phase: Phase) -> dict[Any, TensorStats]:
        return trace.by(
            lambda site: (
                (site.module, site.op)
                if site.phase is phase and site.op in {"addmm", "relu", "tanh", "native_layer_norm", "mul"}
                else None
            )
        )

    assert by_module(trace, Phase.FORWARD) == by_module(plain, Phase.FORWARD)
    again = {
        key: stats
        for key, stats in by_module(trace, Phase.RECOMPUTE).items()
        if key[1] in {"addmm", "relu", "tanh"}
    }
    inside = {
        key: stats
        for key, stats in by_module(plain, Phase.FORWARD).items()
        if key[1] in {"addmm", "relu", "tanh"} and key[0].partition(".")[0] in {"1", "2"}
    }
    assert again == inside
    backward = {"threshold_backward", "tanh_backward", "native_layer_norm_backward"}

    def gradients(trace: Trace) -> dict[Any, TensorStats]:
        return trace.by(lambda site: (site.module, site.op) if site.op in backward else None)

    assert gradients(trace) == gradients(plain)
    assert [(m.path, m.calls) for m in trace.modules] == [(m.path, m.calls) for m in plain.modules]


def test_sparse_gradients_count_the_rows_they_store():
    model, batch, _ = CASES["sparse_embedding"]()
    grad = ran(report("sparse_embedding").reference, slot="param_grad[weight]", module="emb")
    (stats,) = grad.values()
    assert stats.numel == batch.numel() * model.emb.embedding_dim


def test_an_empty_batch_is_seen_and_holds_nothing():
    (stats,) = ran(report("empty_batch").low, op="addmm", module="fc1").values()
    assert stats == TensorStats()


def test_inputs_are_those_before_the_forward():
    (stats,) = ran(report("kwargs_only").reference, module="inner", slot="input.extra.bias").values()
    assert (stats.zeros, stats.numel) == (8, 8)


def test_islands_run_in_float32_and_queries_answer_for_cuda():
    dtypes = {site.module: site.dtype for site in ran(report("autocast_islands").low, op="addmm")}
    assert dtypes == {"a": "float32", "b": "float32", "c": "float16", "fc1": "float16"}


def test_a_subclass_without_operations_of_its_own_is_read_like_any_tensor():
    found = report("subclassed_inputs").reference
    slots = {
        (s.module, s.slot): stats.numel
        for s, stats in found.sites.items()
        if s.module == "pieces" and not s.op
    }
    assert slots == {
        ("pieces", "input[0]"): 32,
        ("pieces", "output.named"): 32,
        ("pieces", "output.sparse"): 4,
    }
    assert found.not_audited == {}


def test_custom_functions_cast_as_on_cuda():
    sites = ran(report("custom_functions").low, op="mm", phase=Phase.FORWARD)
    by_line = sorted((site.line, site.dtype) for site in sites)
    assert [dtype for _, dtype in by_line] == ["float32", "float16"]
    model, x, _ = CASES["custom_functions"]()
    wide = F.linear(x, model.fc1.weight, model.fc1.bias) ** 3 @ model.w32
    (stats,) = (
        stats
        for site, stats in ran(report("custom_functions").reference, op="mm", phase=Phase.FORWARD).items()
        if site.line == by_line[0][0]
    )
    assert stats.amax == pytest.approx(float(wide.abs().max().detach()), rel=1e-6)


def test_double_backward_counts_the_gradients_of_gradients():
    trace = report("gradient_penalty").reference
    # The backward of the one tanh runs in the penalty, in the step's backward, and in the penalty's gradient.
    (site,) = ran(trace, op="tanh")
    backward = ran(trace, op="tanh_backward")
    assert sum(stats.numel for stats in backward.values()) == 3 * trace.sites[site].numel
    assert {s.module for s in backward} == {"1"}
    assert {(s.file, s.line) for s in backward} == {(site.file, site.line)}


def test_a_widened_reference_differs_from_the_half_stored_model():
    found = report("integer_and_mixed_precision", "bf16")
    (wide,) = ran(found.reference, op="addmm", module="low")
    (half,) = ran(found.low, op="addmm", module="low")
    assert (wide.dtype, half.dtype) == ("float32", "bfloat16")


@pytest.mark.filterwarnings("ignore")
def test_distributed_data_parallel_of_one_process(tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        torch.manual_seed(3)
        wrapped = nn.parallel.DistributedDataParallel(Net())
        found = audit(Target("ddp", wrapped, [torch.randn(4, 8)], total), Settings())
        torch.manual_seed(3)
        bare = audit(Target("ddp", Net(), [torch.randn(4, 8)], total), Settings())
    finally:
        torch.distributed.destroy_process_group()
    assert found.low.failure is None
    assert {m.path for m in found.low.modules} == {"", "fc1", "fc2"}

    def key(site: Site) -> Site | None:
        compared = {"addmm", "relu", "threshold_backward", "mm"}
        return site if site.op in compared or "grad" in site.slot else None

    assert found.reference.by(key) == bare.reference.by(key)


def test_no_warning_is_raised_by_an_exception_inside_a_module():
    class Fragile(nn.Module):
        def forward(self, x, *, flag):
            raise ValueError("expected")

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.fragile = Fragile()

        def forward(self, x):
            try:
                self.fragile(x, flag=True)
            except ValueError:
                return super().forward(x) * 2

    model = Model()
    with warnings.catch_warnings(action="error"), Recorder(model) as recorder:
        model(torch.randn(2, 8))
    trace = recorder.trace(recorder.fetch())
    assert {site.module for site in ran(trace, op="mul")} == {""}
