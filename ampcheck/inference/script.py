"""What a script calls without gradients: the inputs of its models, kept to audit their forwards when it has ended."""

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.inference.casting import Way
from ampcheck.inference.chain import ENOUGH, Chain
from ampcheck.inference.lab import Subject
from ampcheck.inference.rerun import CHAINED, Rerun, runs_again
from ampcheck.observe.dtypes import DTYPES, PRECISIONS
from ampcheck.observe.model.cast_weights import state
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.roots import RootFinder
from ampcheck.targets.spec import Target, no_loss
from ampcheck.values.settings import Settings
from ampcheck.values.wording import plural

#: Models kept, and of each the calls: the first, and ever more rarely then.
MOST_MODELS, MOST_CALLS = 8, 6
#: Calls from which on they are run again in a row.
FEWEST = 3
#: Bytes of inputs kept of one model.
MOST_BYTES = 1 << 28


@dataclass(slots=True)
class Called:
    """A model that a script calls without gradients."""

    held: Callable[[], Any]  #: the model; None where the script let go of it
    kind: str
    precision: str  #: fp16 or bf16; '' where the script computes in FP32
    cast: str
    numbers: int  #: of its parameters
    calls: int = 0
    batches: list[Any] = field(default_factory=list)
    bytes: int = 0
    chain: Chain | None = None  #: its first calls as they follow each other

    @property
    def wanted(self) -> bool:
        """Tell whether the inputs of this call are kept."""
        power = self.calls & (self.calls - 1) == 0
        return power and len(self.batches) < MOST_CALLS and self.bytes < MOST_BYTES


class Forwards:
    """Keeps the inputs of outermost module calls without gradients; nothing else of a script is touched."""

    def __init__(self) -> None:
        """Begin with nothing called."""
        self.models: dict[int, Called] = {}
        self.failed = 0  #: calls whose inputs could not be copied
        self.compiles: Callable[[], bool] = lambda: False  #: a graph must not be made of what a chain follows
        self._running: tuple[Called, tuple[Any, ...], dict[str, Any]] | None = None
        self._followed: Called | None = None  #: the model whose chain grows

    def follow(self, roots: RootFinder) -> None:
        """Hear of every outermost call without gradients, and of what it gave."""
        others, with_gradients = roots.returned, roots.with_gradients

        def returned(output: Any) -> None:
            others(output)
            self.returned(output)

        def trains(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.close()  # a script that trains carries nothing from call to call
            with_gradients(module, args, kwargs)

        roots.without_gradients, roots.returned, roots.with_gradients = self.note, returned, trains

    def note(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call; whatever goes wrong here, the script goes on."""
        try:
            called = self._of(module)
            if called is not None:
                with unseen():
                    if called.wanted:
                        self._keep(called, args, kwargs)
                called.calls += 1
            self._in_a_row(called, args, kwargs)
        except Exception:  # noqa: BLE001  # a module that answers in its own way
            self.failed += 1
            self.close()

    def _in_a_row(self, called: Called | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow the calls of the model that the script is at, beside others that it calls on other things."""
        if self.compiles():
            self.close()
            return
        if called is None:  # of a module that learns nothing, each operation is the script's own
            return
        before = self._followed
        if before is not None and before is not called and before.chain is not None:
            before.chain.pause()
            if before.chain.passes([args, kwargs]):
                before.chain.end("its result goes through another model")
            elif before.chain.follows and (before.chain.calls > 1 or called.calls <= 1):
                return
        if called.chain is None:
            if before is not None and before.chain is not None:
                before.chain.end("another model was called")
            called.chain, self._followed = Chain(called.numbers), called
        if called is self._followed:
            called.chain.called(args, kwargs)
            self._running = called, args, kwargs

    def returned(self, output: Any) -> None:
        """Take note of what a call has given."""
        running, self._running = self._running, None
        followed = self._followed
        try:
            if running is not None and running[0].chain is not None:
                running[0].chain.returned(running[1], running[2], output)
            elif followed is not None and followed.chain is not None and followed.chain.follows:
                followed.chain.resume()
        except Exception:  # noqa: BLE001  # tensors of the script's own kinds
            self.failed += 1
            self.close()

    def close(self) -> None:
        """Follow nothing from here on."""
        if self._followed is not None and self._followed.chain is not None:
            self._followed.chain.end("the script ended")
        self._followed = self._running = None

    def _of(self, module: torch.nn.Module) -> Called | None:
        known = self.models.get(id(module))
        if known is not None or len(self.models) >= MOST_MODELS:
            return known
        tensors = [tensor for _, _, tensor, buffer in state(module) if not buffer]
        if not tensors:
            return None
        half = next((tensor.dtype for tensor in tensors if tensor.dtype in PRECISIONS), None)
        device = tensors[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        precision = PRECISIONS.get(half or autocast or torch.float32, "")
        # A model on a GPU may have to make room for the next one.
        held: Callable[[], Any] = weakref.ref(module) if device != "cpu" else lambda: module
        cast = "weights" if half is not None or autocast is None else "autocast"
        called = self.models[id(module)] = Called(
            held, type(module).__name__, precision, cast, sum(tensor.numel() for tensor in tensors)
        )
        return called

    def _keep(self, called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            kept = copy.deepcopy((args, kwargs))
        except Exception:  # noqa: BLE001  # whatever the script passes to its model
            self.failed += 1
            return
        found = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
        called.bytes += sum(tensor.numel() * tensor.element_size() for tensor in found)
        called.batches.append({"args": kept[0], "kwargs": kept[1]})

    def targets(self, name: str, left_out: str = "") -> Iterator[tuple[Target, Settings]]:
        """Yield what is to be audited of each model that is still there, the most called last."""
        self.close()
        for called in self.models.values():
            model = called.held()
            if model is None or not called.batches:
                continue
            notes = [
                f"{called.calls} calls of {called.kind} were seen, {len(called.batches)} of them are audited"
            ]
            chain, said = _chain_of(called, model)
            notes += said
            batches = called.batches if chain is None else [_in_a_row(chain), *called.batches]
            if not called.precision:
                notes.append("the script computes in FP32: it was audited as if the model were cast to fp16")
            target = Target(
                f"{name}: {called.kind}",
                model,
                batches,
                no_loss,
                predict=Rerun(chain, low=bool(called.precision)),
                infers=True,
                notes=tuple(notes),
                left_out=left_out,
            )
            yield target, Settings(called.precision or "fp16", mode="infer", cast=called.cast)

    @property
    def lost(self) -> list[str]:
        """Return the models that the script let go of before it ended."""
        return [called.kind for called in self.models.values() if called.held() is None]


def _in_a_row(chain: Chain) -> dict[str, Any]:
    return {CHAINED: True, "args": chain.begun[0], "kwargs": chain.begun[1]}


def _chain_of(called: Called, model: Any) -> tuple[Chain | None, list[str]]:
    """Return the calls that can be run again in a row, and what is to be said of that."""
    chain, kind = called.chain, called.kind
    if chain is None or chain.calls < FEWEST or not chain.carried:
        return None, []
    low = bool(called.precision)
    dtype = DTYPES.get(called.precision)
    way = Way(dtype, called.cast == "weights")
    rerun = Rerun(chain, low=low)
    subject = Subject(model, [_in_a_row(chain)], rerun)
    if not runs_again(rerun, subject, way):
        why = "run again, they do not give the results they gave in the script"
        return None, [f"the error of {kind} from call to call is not known: {why}"]
    whole = chain.calls == called.calls
    first = f"the {chain.calls} calls" if whole else f"the first {chain.calls} of {called.calls} calls"
    said = [
        f"batch 1 is {first} in a row, each on the results of those before; the other batches are single calls"
    ]
    if not whole and chain.ended not in {"", ENOUGH}:
        said.append(f"after {chain.calls} calls of {kind} the state was not followed: {chain.ended}")
    if chain.numbers_read:
        said.append(
            f"{plural(chain.numbers_read, 'number')} that the script read between the calls keep their values"
        )
    return chain, said
