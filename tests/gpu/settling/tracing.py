"""One step of a model as it was run: operations, dtypes, casts, and the exponents of what modules return."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from parity import Comparison, Event, Log, compare
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from settling.fixed import exponents, moved
from settling.keep import Row
from settling.models import RECURRENT, Step, made

#: Gradients are multiplied by this, as GradScaler would.
SCALE = 2.0**10
#: Of a module's elements so many may lie in another power of two: kernels add up in another order. Another scale, dtype
#: or operation moves nearly all.
MOVED = 0.15
#: Modules with fewer elements: one of them that crosses a power of two is more than that share.
FEW = 64


def _run(step: Step, device: str, dtype: torch.dtype) -> None:
    """Run forward, loss and backward; attention as its composite, since the fused kernel depends on the GPU."""
    rules = cuda_casting() if device == "cpu" else nullcontext()
    with sdpa_kernel(SDPBackend.MATH), rules:
        with torch.autocast(device, dtype):
            loss = step.loss(step.model, step.batch)
        (loss * SCALE).backward()


def _operations(name: str, device: str, dtype: torch.dtype) -> list[Event]:
    step = made(name, device)
    with Log() as log:
        _run(step, device, dtype)
    return log.events


def _modules(name: str, device: str, dtype: torch.dtype) -> tuple[Row, Row]:
    """Return dtypes and exponents of every module's results, in order of the calls."""
    step = made(name, device)
    dtypes: Row = {}
    found: Row = {}
    calls: Counter[str] = Counter()

    def left(path: str, out: Any) -> None:
        calls[path] += 1
        call = path if calls[path] == 1 else f"{path} #{calls[path]}"
        for at, leaf in enumerate(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            if leaf.is_floating_point():
                key = f"{call} [{at}]" if at else call
                dtypes[key] = str(leaf.dtype)[6:]
                found[key] = exponents(leaf)
                if leaf.requires_grad:
                    leaf.register_hook(lambda grad, key=key: _gradient(key, grad))

    def _gradient(key: str, grad: Tensor | None) -> None:
        if grad is None:  # of a result that nothing uses: cuDNN's networks have several
            return
        dtypes[f"{key} grad"] = str(grad.dtype)[6:]
        found[f"{key} grad"] = exponents(grad)

    for path, module in step.model.named_modules():
        if path:
            module.register_forward_hook(lambda _, __, out, path=path: left(path, out))
    with WideCompute():
        _run(step, device, dtype)
    return dtypes, found


def traced(name: str, dtype: torch.dtype, device: str) -> Row:
    """Return what one step of a model did on a device, as it is kept."""
    events = _operations(name, device, dtype)
    kinds = list(dict.fromkeys(events))
    dtypes, found = _modules(name, device, dtype)
    return {
        "kinds": [list(kind) for kind in kinds],
        "order": [kinds.index(event) for event in events],
        "dtypes": dtypes,
        "exponents": found,
    }


def events(row: Row) -> list[Event]:
    """Return the operations of a kept trace."""
    kinds = [Event(op, tuple(ins), tuple(outs)) for op, ins, outs in row["kinds"]]
    return [kinds[at] for at in row["order"]]


def apart(name: str, cuda: Row, cpu: Row, *, whole: bool) -> list[str]:
    """Return what differs between CUDA's trace and the emulation's; an empty list: nothing.

    `whole`: the sequence of operations too, which belongs to one version of torch. Casts belong to every one.
    """
    found = []
    if name not in RECURRENT:
        found += _differences(compare(events(cuda), events(cpu)), whole=whole)
    for key in sorted(cuda["dtypes"].keys() | cpu["dtypes"].keys()):
        dtypes = cuda["dtypes"].get(key), cpu["dtypes"].get(key)
        if dtypes[0] != dtypes[1]:
            found.append(f"{key}: {dtypes[0]} on CUDA, {dtypes[1]} emulated")
            continue
        share = moved(cuda["exponents"][key], cpu["exponents"][key])
        if share > MOVED and sum(cuda["exponents"][key].values()) >= FEW:
            found.append(f"{key}: {share:.0%} of the elements lie in another power of two")
    return found


def _differences(result: Comparison, *, whole: bool) -> list[str]:
    found = [] if result.same_casts else ["the casts are others, or in another order"]
    if whole:
        found += [str(difference) for difference in result.differences if not difference.allowed]
    return found


def farthest(cuda: Row, cpu: Row) -> float:
    """Return the largest share of a module's elements that lie in another power of two."""
    shared = [key for key in cuda["exponents"].keys() & cpu["exponents"].keys()
              if sum(cuda["exponents"][key].values()) >= FEW]  # fmt: skip
    return round(
        max((moved(cuda["exponents"][key], cpu["exponents"][key]) for key in shared), default=0.0), 4
    )
