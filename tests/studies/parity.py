"""Does the CPU policy cast as CUDA does? One training step of many models, both ways, operator by operator.

    python tests/studies/parity.py --report reports/parity.md

The witness is torch itself: the same model on fake CUDA tensors under CUDA's own autocast kernels, which
every build has. Without CUDA in the build they cannot require gradients; then forwards are compared.
"""

import argparse
import difflib
import functools
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from parity_engine import backward
from parity_models import CASES, Case
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import execute

CAN_DIFFERENTIATE = torch.backends.cuda.is_built()


class Event(NamedTuple):
    """One operator as it was executed: its name and the dtypes that went in and came out."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"

    @property
    def is_cast(self) -> bool:
        return self.op == "_to_copy" and self.inputs != self.outputs


class Log(TorchDispatchMode):
    """Notes every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = execute(func, args, kwargs or {})
        if func.namespace != "prim":
            name = func.name().removeprefix("aten::")
            self.events.append(Event(name, _dtypes((args, kwargs)), _dtypes(out)))
        return out


def _dtypes(values: Any) -> tuple[str, ...]:
    return tuple(str(leaf.dtype)[6:] for leaf in tree_iter(values) if isinstance(leaf, torch.Tensor))


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Turn CUDA's own autocast on; `torch.autocast` refuses where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


@contextmanager
def emulated_autocast(dtype: torch.dtype) -> Iterator[None]:
    with cuda_casting(), torch.autocast("cpu", dtype):
        yield


def fake(module: nn.Module, batch: Any, mode: FakeTensorMode, device: str) -> Any:
    """Replace the parameters and buffers of `module` by fake ones on `device`, and return such a batch."""

    @functools.cache
    def parameter(value: nn.Parameter) -> nn.Parameter:
        shadow = mode.from_tensor(value.detach()).to(device)
        return nn.Parameter(shadow, value.requires_grad and CAN_DIFFERENTIATE)

    for owner in module.modules():
        for name, value in owner._parameters.items():
            owner._parameters[name] = None if value is None else parameter(value)
        for name, value in owner._buffers.items():
            owner._buffers[name] = None if value is None else mode.from_tensor(value).to(device)
    return tree_map_only(torch.Tensor, lambda leaf: mode.from_tensor(leaf).to(device), batch)


def trace(case: Case, dtype: torch.dtype, device: str) -> list[Event]:
    """Return the operators of one step of `case` on fake tensors of `device`, under CUDA's policy.

    Attention is computed by its composite: which fused kernel CUDA picks depends on the GPU.
    """
    torch.manual_seed(0)
    module, batch, loss = case.build()
    autocast = cuda_autocast if device == "cuda" else emulated_autocast
    with sdpa_kernel(SDPBackend.MATH), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        batch = fake(module, batch, mode, device)
        with Log() as log:
            with autocast(dtype):
                value = loss(module, batch)
            if CAN_DIFFERENTIATE:
                backward(value)
    return log.events


def trace_real(case: Case, dtype: torch.dtype) -> list[Event]:
    """Return the operators of one step of `case` on real CPU tensors, with torch's own backward."""
    torch.manual_seed(0)
    module, batch, loss = case.build()
    with sdpa_kernel(SDPBackend.MATH), Log() as log:
        with emulated_autocast(dtype):
            value = loss(module, batch)
        if CAN_DIFFERENTIATE:
            value.backward()
    return log.events


# What may differ, and why. Everything else is a mismatch.
ALLOWED = """\
- batch norm: cuDNN's kernel (float16) is `cudnn_batch_norm`, elsewhere it is `native_batch_norm`; the
  statistics saved for the backward are float32 on CUDA and on real CPU tensors, but fake CPU tensors say
  otherwise, so they are not compared; cuDNN's reserve space (uint8) exists on one side only
- layout: copies and views that keep the dtype, of tensors the model makes on the host, and to the memory
  layout that a back end's convolution, batch norm or gradient buffer wants
- aliases (`detach`) are not compared
"""
LAYOUT = frozenset(
    {"clone", "_to_copy", "copy_", "new_zeros", "new_empty_strided"}
    | {"view", "_unsafe_view", "as_strided", "as_strided_", "squeeze.dim", "unsqueeze"}
)
INTRODUCTION = """\
# Parity of the CPU policy with CUDA autocast

One training step (forward, loss, backward) of every model, twice: on fake CUDA tensors under torch's own
CUDA autocast kernels, and on fake CPU tensors under ampcheck's. Compared is the whole sequence of operators
with the dtypes of their inputs and outputs, casts included. Attention runs as its composite on both sides,
because the fused kernel that CUDA would pick depends on the GPU. Made by
`python tests/studies/parity.py --report reports/parity.md`.

Not compared, because without a GPU there is nothing to compare with: fused attention kernels, and cuDNN's
recurrent layers. Their autocast kernel was followed with float16 weights only: it casts input and states to
float16 under bfloat16, too; that it does so with float32 weights is taken from its source.
"""


def canonical(events: Iterable[Event]) -> list[Event]:
    """Give batch norm one name, keep of it what both back ends have, and leave out memory and aliases."""
    out = []
    for event in events:
        name = event.op.removeprefix("cudnn_").removeprefix("native_")
        if name == "batch_norm":
            out.append(Event(name, event.inputs, event.outputs[:1]))
        elif name == "batch_norm_backward":
            out.append(Event(name, event.inputs[:3], event.outputs))
        elif name != "detach" and event.outputs != ("uint8",):
            out.append(event)
    return out


class Difference(NamedTuple):
    """A stretch of operators that is not the same on both sides."""

    cuda: tuple[Event, ...]
    cpu: tuple[Event, ...]

    def __str__(self) -> str:
        return f"CUDA [{'; '.join(map(str, self.cuda))}], CPU [{'; '.join(map(str, self.cpu))}]"

    @property
    def allowed(self) -> bool:
        """Whether only the arrangement in memory differs: nothing computed, and one dtype throughout."""
        events = (*self.cuda, *self.cpu)
        dtypes = {dtype for event in events for dtype in (*event.inputs, *event.outputs)}
        return len(dtypes - {"int64", "bool"}) <= 1 and {event.op for event in events} <= LAYOUT


class Comparison(NamedTuple):
    """What became of comparing one model."""

    operators: int
    casts: int
    renamed: int
    differences: list[Difference]
    same_casts: bool

    @property
    def equal(self) -> bool:
        return self.same_casts and all(difference.allowed for difference in self.differences)


def compare(cuda: list[Event], cpu: list[Event]) -> Comparison:
    """Return how two traces of one step differ."""
    left, right = canonical(cuda), canonical(cpu)
    differences = []
    if left != right:
        matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag != "equal":
                differences.append(Difference(tuple(left[a:b]), tuple(right[c:d])))
    casts = [[event for event in events if event.is_cast] for events in (left, right)]
    renamed = sum(event.op.startswith("cudnn_") for event in cuda)
    return Comparison(len(left), len(casts[0]), renamed, differences, casts[0] == casts[1])


def row(case: Case, dtype: torch.dtype) -> tuple[str, Comparison]:
    """Return the report's line for one model, and what it rests on."""
    result = compare(trace(case, dtype, "cuda"), trace(case, dtype, "cpu"))
    notes = [f"{result.renamed} x batch norm"] if result.renamed else []
    moved = [difference for difference in result.differences if difference.allowed]
    notes += [f"{len(moved)} x layout"] if moved else []
    notes += [f"**{difference}**" for difference in result.differences if not difference.allowed]
    verdict = "equal" if result.equal else "**different**"
    cells = (
        case.name,
        case.kind,
        str(dtype)[6:],
        result.operators,
        result.casts,
        verdict,
        ", ".join(notes) or "none",
    )
    return "| " + " | ".join(map(str, cells)) + " |", result


def report(rows: list[tuple[str, Comparison]], seconds: float) -> str:
    """Return the report as Markdown."""
    equal = sum(result.equal for _, result in rows)
    operators = sum(result.operators for _, result in rows)
    casts = sum(result.casts for _, result in rows)
    summary = (
        f"**{equal} of {len(rows)} runs equal**, {len(CASES)} models: {operators} operators, {casts} casts; "
        f"torch {torch.__version__}, Python {platform.python_version()}, {seconds:.0f} s."
    )
    head = "| model | kind | dtype | operators | casts | verdict | differences |\n"
    head += "|---|---|---|---:|---:|---|---|"
    table = "\n".join(line for line, _ in rows)
    return f"{INTRODUCTION}\n{summary}\n\nAllowed differences:\n\n{ALLOWED}\n{head}\n{table}\n"


def main() -> int:
    """Compare all models in both dtypes; exit with 1 if any differs."""
    parser = argparse.ArgumentParser(
        description="Compare ampcheck's CPU policy with CUDA autocast, model by model."
    )
    parser.add_argument("--report", type=Path, help="write the table here instead of to standard output")
    parser.add_argument("--only", default="", help="compare only models whose name contains this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    started, rows = time.perf_counter(), []
    for case in CASES:
        for dtype in (torch.float16, torch.bfloat16):
            if chosen.only in case.name:
                rows.append(row(case, dtype))
                print(rows[-1][0], file=sys.stderr)
    text = report(rows, time.perf_counter() - started)
    if chosen.report is None:
        print(text)
    else:
        chosen.report.write_text(text, encoding="utf-8")
    return not all(result.equal for _, result in rows)


if __name__ == "__main__":
    sys.exit(main())
