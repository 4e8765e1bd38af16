"""Half-precision numbers that a script computes before it trains: tables, counts, schedules, data.

A recorded step finds them there and could only take them as they are. So the operations before training run in FP32,
too, from the first half-precision number on, and the recorded steps go on from that. Only where the script's source
computes in half precision by itself: whoever leaves that to autocast has no such numbers.
"""

import os
import sys
import weakref
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.patches import Patches
from ampcheck.observe.reference.beside_mode import BesideMode
from ampcheck.observe.reference.sharing import local
from ampcheck.observe.reference.storage import Reference
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.results import Results
from ampcheck.observe.statistics.memory import instances, instances_of, readable
from ampcheck.values.trace import UpdateLoss

#: What turns code into a graph, for which no mode of ours may be in force.
_GRAPHS = (
    (torch.jit, "trace"),
    (torch.jit, "trace_module"),
    (torch.export, "export"),
    (torch.onnx, "export"),
    (torch, "compile"),
)
#: Seconds that FP32 may take before training, and operations that are looked at.
_SECONDS, _OPERATIONS = 0.5, 50_000
#: What is not audited where following took too long.
UNFOLLOWED = "half-precision numbers computed before training, too many to follow"
#: Error of a tensor, as a part of FP32's, from which on rounding its numbers once cannot have made it.
_FAR = 0.1


class Listener(BesideMode):
    """Follows the thread that trains where no step is recorded, and no process that is forked from it."""

    def __init__(self, results: Results, watcher: Any) -> None:
        super().__init__(results)
        self._results, self._watcher, self._process = results, watcher, os.getpid()

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operation, and FP32's where it is followed."""
        if not self._results.open or os.getpid() != self._process:
            self.step_aside()
        elif self.follows:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    @property
    def follows(self) -> bool:
        """Whether what runs now is to be followed."""
        return not self._watcher.capturing


class _Off(NamedTuple):
    """A tensor that is far from FP32's when training begins."""

    tensor: weakref.ref[torch.Tensor]
    error: float
    place: tuple[str, int]  #: of what has made it


class Preparation:
    """What is computed in half precision before the first step, and what FP32 has in its place."""

    def __init__(self) -> None:
        self._results = Results(_SECONDS, _OPERATIONS)
        self.mode: Listener | None = None  #: what follows the thread, until it trains
        self._off: dict[int, _Off] = {}

    def begin(self, watcher: Any) -> None:
        """Follow the running thread until it trains."""
        self.mode = Listener(self._results, watcher)
        self.mode.__enter__()

    def end(self) -> None:
        """Follow nothing any more: training begins, or what runs cannot be followed."""
        mode, self.mode = self.mode, None
        if mode is None:
            return
        mode.__exit__()
        self._results.open = False
        if self._results.heard:
            with unseen():
                self._leave_weights()
                self._compare()

    @property
    def heard(self) -> bool:
        """Whether there were numbers in half precision."""
        return self.mode is None and self._results.heard

    @property
    def missed(self) -> str:
        """Return what was not followed for want of time or memory, '' where all of it was."""
        return UNFOLLOWED if self._results.heard and self._results.given_up else ""

    def beside(self, tensor: torch.Tensor) -> Reference | None:
        """Return the reference of a tensor that was made before training, and not written since."""
        return self._results.known(tensor)

    def lost(self, tensor: torch.Tensor, name: str) -> tuple[UpdateLoss, ...]:
        """Return what half precision had lost of a tensor when training began."""
        off = self._off.get(id(tensor))
        if off is None or off.tensor() is not tensor:
            return ()
        size = tensor.numel()
        return (UpdateLoss(name, size, size, 0, *off.place, before=off.error),)

    def _leave_weights(self) -> None:
        """Take weights, and the averages of normalisations, as they are: rounding these is judged by itself."""
        held = [one for one in instances(torch.Tensor, torch.nn.Parameter) if one.requires_grad]
        held += [one for norm in instances_of(_NormBase) for one in norm.buffers()]
        # Writes to a weight that is spread over ranks are counted at the whole, not at the part that holds numbers.
        spread = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
        held += [local(one) for one in instances(spread) if one.requires_grad] if spread else []
        for tensor in [*held, *instances(torch.nn.Parameter)]:
            if readable(tensor):
                self._results.forget(tensor)

    def _compare(self) -> None:
        for tensor in instances(torch.Tensor):
            known = self.beside(tensor) if tensor.dtype in HALVES and readable(tensor) else None
            if known is None or not tensor.numel():
                continue
            wide = known.of(tensor).double()
            seen = wide.isfinite()
            sizes = [one.where(seen, 0.0).norm() for one in (tensor.double() - wide, wide)]
            error, size = torch.stack(sizes).tolist()
            off = error / size if size else 0.0
            if not off <= _FAR:
                place = ("", 0) if known.made is None else (known.made.file, known.made.line)
                self._off[id(tensor)] = _Off(weakref.ref(tensor), off, place)


def hear_graphs_made(patches: Patches, watcher: Any) -> None:
    """Let nothing be followed once code is turned into a graph."""
    for owner, name in _GRAPHS:
        if hasattr(owner, name):
            patches.before(owner, name, lambda *_, **__: watcher.tape.workers.alone())
