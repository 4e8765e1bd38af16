"""Awkward but legal models finish the audit, say what was not audited, and get the numbers right."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampcheck.audit import audit
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.state import Snapshot
from ampcheck.observe.step import casting_rules
from ampcheck.observe.wide import WideCompute, execute
from ampcheck.report import Report
from ampcheck.settings import Settings
from ampcheck.stats import TensorStats
from ampcheck.targets.spec import Target
from ampcheck.trace import Phase, Trace
from tests import awkward_models, awkward_wrappers
from tests.awkward_models import CASES, checkpointed
from tests.witness import COPIES, Counts, Witness, bits, installed, left_behind, model_bits, random_bits, seed

EVERY = pytest.mark.parametrize("name", CASES)
_REPORTS: dict[tuple[str, str], Report] = {}


def report(name: str, precision: str = "fp16") -> Report:
    """Return a case's report; the audits are shared between tests."""
    if (name, precision) not in _REPORTS:
        model, batch, loss = CASES[name]()
        _REPORTS[name, precision] = audit(
            Target(name, model, [batch], loss),
            Settings(precision=precision, log2_scale=4 if precision == "fp16" else 0),
        )
    return _REPORTS[name, precision]


def recorded(name: str, dtype: torch.dtype | None) -> tuple[Trace, Witness]:
    """Return one step as the recorder and as the witness saw it, from the same state."""
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    before = Snapshot(model, batch)
    recorder, witness = Recorder(model, execute=execute), Witness(execute)
    for mode in (recorder, witness):
        before.restore()
        seed()
        with casting_rules(torch.device("cpu"), dtype), mode:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                value = loss(model, batch)
            value.backward()
    return recorder.trace(recorder.fetch()), witness


def ran(trace: Trace, **wanted: Any) -> dict[Any, TensorStats]:
    return {
        site: stats
        for site, stats in trace.sites.items()
        if all(getattr(site, key) == value for key, value in wanted.items())
    }


def same(stats: TensorStats, counts: Counts) -> bool:
    exact = (stats.numel, stats.zeros, stats.infs, stats.nans, stats.amax)
    return exact == (
        counts.numel,
        counts.zeros,
        counts.infs,
        counts.nans,
        counts.amax,
    ) and stats.sum_squares == pytest.approx(counts.squares, rel=1e-5)


# TorchScript keeps the graph of the first dtype it was differentiated in, for the whole process: one is enough.
@pytest.mark.parametrize(
    ("name", "precision"), [(n, p) for n in CASES for p in ("fp16", "bf16") if (n, p) != ("scripted", "bf16")]
)
def test_the_audit_finishes_and_leaves_everything_as_it_was(name, precision):
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    seed()
    before = bits_of(model, batch), random_bits(), installed()
    found = audit(
        Target(name, model, [batch], loss),
        Settings(precision=precision, log2_scale=4 if precision == "fp16" else 0),
    )
    _REPORTS.setdefault((name, precision), found)
    assert found.low.failure is None
    assert found.low.sites
    assert found.errors
    assert found.low.steps[0].loss == pytest.approx(found.reference.steps[0].loss, rel=0.1, abs=0.05)
    after = bits_of(model, batch), random_bits(), installed()
    assert after[:2] == before[:2]
    assert left_behind(before[2], after[2]) == []


def bits_of(model: Any, batch: Any) -> Any:
    found = {}
    for name in ("net", "encoder", "decoder"):
        cell = getattr(model, name, None)
        if isinstance(cell, nn.Module):
            found[name] = {key: bits(t) for key, t in cell.state_dict().items()}
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        found["all"] = model.__dict__.keys(), {key: bits(t) for key, t in nn.Module.state_dict(model).items()}
    return found, [bits(t) for t in torch.utils._pytree.tree_leaves(batch) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=["fp32", "fp16"])
@EVERY
def test_every_operation_counts_as_brute_force_counts_it(name, dtype):
    trace, witness = recorded(name, dtype)
    mine = trace.by(lambda site: (site.op, site.dtype) if site.op and site.op not in COPIES else None)
    assert trace.operations == witness.seen.ops
    theirs = witness.seen.results
    assert set(mine) == {key for key, counts in theirs.items() if counts.numel or key in mine}
    wrong = {key: (mine[key], theirs[key]) for key in mine if not same(mine[key], theirs[key])}
    assert not wrong


@EVERY
def test_casts_are_those_an_independent_mode_sees(name):
    trace, witness = recorded(name, torch.float16)
    theirs: Counter[Any] = Counter()
    volume: Counter[Any] = Counter()
    for source, target, size in witness.seen.casts:
        theirs[str(source)[6:], str(target)[6:]] += 1
        volume[str(source)[6:], str(target)[6:]] += size
    mine: Counter[Any] = Counter()
    written: Counter[Any] = Counter()
    for cast, count in trace.casts.items():
        mine[cast.source, cast.target] += count.calls
        written[cast.source, cast.target] += count.bytes
    assert (mine, written) == (theirs, volume)


@EVERY
def test_the_step_is_the_same_with_the_recorder(name):
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    before = Snapshot(model, batch, loss)
    found = []
    for mode in (WideCompute(), Recorder(model, samples=8, execute=execute)):
        before.restore()
        seed()
        with casting_rules(torch.device("cpu"), torch.float16), mode:
            with torch.autocast("cpu", dtype=torch.float16):
                value = loss(model, batch)
            value.backward()
        real = (
            model if isinstance(model, nn.Module) and name != "overrides_train_and_getattr" else nn.Module()
        )
        found.append((bits(value), random_bits(), bits_of(model, batch), model_bits(real)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "overrides_call",
            {
                "modules run without being called, counted as part of their caller: direct, bypassed": 2,
                "modules that were never called: unused": 1,
            },
        ),
        (
            "threads",
            {
                "modules run without being called, counted as part of their caller: fc2": 1,
                "module calls in threads of the model's own": 1,
            },
        ),
        ("transforms", {"inputs and outputs of modules inside function transforms": 2}),
        (
            "quantized_nested_and_subclassed",
            {
                "quantized tensors (torch.quint8)": 1,
                "operations on Doubled, seen in the parts it takes them apart into": 1,
                "operations on NestedTensor, seen in the parts it takes them apart into": 3,
            },
        ),
        (
            "scripted",
            {
                "modules run without being called, counted as part of their caller: part.0": 1,
                "modules that were never called: part.1": 1,
            },
        ),
        ("recurrent", {}),
        ("sparse_embedding", {}),
        ("complex_numbers", {}),
        ("checkpoint_non_reentrant", {}),
        ("custom_functions", {"modules that were never called: fc2": 1}),
    ],
)
def test_what_was_not_audited_is_named(name, said):
    assert report(name).not_audited == said


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "compiled",
            "compiled parts were run eagerly, so that their operations can be seen: the model, head, body",
        ),
        ("lazy", "a first run gave 3 lazy modules their shape"),
        ("half_that_insists", "the reference keeps half-precision parameters"),
    ],
)
def test_what_was_assumed_is_noted(name, note):
    _REPORTS.pop((name, "fp16"), None)  # the shared one may have been made from a model prepared already
    assert any(text.startswith(note) for text in report(name).notes)


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
    slots = {(s.module, s.slot): stats.numel for s, stats in found.sites.items() if s.module == "pieces" and not s.op}
    assert slots == {("pieces", "input[0]"): 32, ("pieces", "output.named"): 32, ("pieces", "output.sparse"): 4}
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
    # The backward of the one tanh runs in the penalty, in the step's own backward, and in the penalty's gradient.
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
        wrapped = nn.parallel.DistributedDataParallel(awkward_models.Net())
        found = audit(Target("ddp", wrapped, [torch.randn(4, 8)], awkward_models.total), Settings())
        torch.manual_seed(3)
        bare = audit(
            Target("ddp", awkward_models.Net(), [torch.randn(4, 8)], awkward_models.total), Settings()
        )
    finally:
        torch.distributed.destroy_process_group()
    assert found.low.failure is None
    assert {m.path for m in found.low.modules} == {"", "fc1", "fc2"}
    key = lambda site: (
        site if site.op in {"addmm", "relu", "threshold_backward", "mm"} or "grad" in site.slot else None
    )  # noqa: E731
    assert found.reference.by(key) == bare.reference.by(key)
    assert awkward_wrappers


def test_no_warning_is_raised_by_an_exception_inside_a_module():
    class Fragile(nn.Module):
        def forward(self, x, *, flag):
            raise ValueError("expected")

    class Model(awkward_models.Net):
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
