"""The recorder: one dispatch mode that sees every operation of a step, forward, backward and casts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.observe.book import Book, Fetched
from ampcheck.observe.compiled import compiled_path, filled
from ampcheck.observe.modules import ModuleTracker, tensors_in
from ampcheck.observe.nodes import Nodes
from ampcheck.observe.ops import OpKind, OpPlan, plan_of
from ampcheck.observe.seen import Seen
from ampcheck.observe.sharing import ENGINE
from ampcheck.observe.source import Spot, frames_match, source_finder
from ampcheck.observe.tally import Origin, Tally
from ampcheck.trace import Phase, Site, Trace

#: Functions of torch.utils.checkpoint that run a forward again inside the backward.
_CHECKPOINT = {"utils/checkpoint.py": frozenset({"backward", "unpack_hook"})}
#: The sequence number of nodes that add a gradient to a parameter: no operation of the forward.
_ACCUMULATE = 2**64 - 1

_SKIP, _VIEW, _SAME = OpKind.SKIP, OpKind.VIEW, OpKind.SAME
_CAST, _COPY, _MEASURE = OpKind.CAST, OpKind.COPY, OpKind.MEASURE
_FORWARD, _BACKWARD, _RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE
_grad_enabled = torch.is_grad_enabled
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl

Execute = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]


#: Of a parameter or gradient: the module that owns it, its slot there, and itself.
State = tuple[str, str, torch.Tensor]


def run_op(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation as it is."""
    return func(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation that raised."""

    error: int  #: identity of the exception
    op: str
    origin: Origin | None  #: the line of the forward, where the operation was one of its backward


def _running_number() -> int:
    node = _current_node()
    return -1 if node is None else node._sequence_nr()


class Recorder(TorchDispatchMode):
    """Records what is run inside; nothing of it stays behind, and no number of the step changes.

    Statistics stay on the tensors' device until `trace` reads them, once. No tensor is kept alive.
    """

    layers = False  #: whether only what enters and leaves modules is measured
    plain: frozenset[type] = frozenset({torch.Tensor})  #: kinds of a result that are one tensor of numbers
    #: Without this an operator of higher order, such as flex_attention, raises.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper that this would put around each operation costs as much as recording it.
        return False

    def __init__(
        self,
        model: Any,
        *,
        samples: int = 0,
        most: int = 0,
        execute: Execute = run_op,
        compiled: bool = True,
        book: Book | None = None,
    ) -> None:
        """Prepare to record steps of a model.

        `samples` elements of each result are kept for comparison, at most `most` are read where it is not 0;
        `execute` runs an operation; `compiled` lets C do what it can, where it was built and neither of them is
        wanted: the trace is the same; `book` is written into instead of a new one.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotations here
        self.execute = execute
        self.tracker = ModuleTracker(model)
        #: Does in C, where it was built, what `__torch_dispatch__` does, on tables of its own.
        self.path = None
        if compiled and not samples and not most and book is None:
            self.path = compiled_path(self, None if execute is run_op else execute)
        self._where = self.path or self.tracker
        self.book = Book(samples, self.path, most) if book is None else book
        self.tally = Tally(self.book, self.path or Seen(), follow=bool(samples))
        self._measure, self._inherit, self._copied = (
            self.tally.measure,
            self.tally.inherit,
            self.tally.copied,
        )
        self.failed: Failed | None = None  #: the last operation that raised
        self.source = source_finder()
        self._plans: dict[int, OpPlan] = {}
        self._known: list[OpOverload] = []
        self._origins: dict[Any, Origin] = {}
        self._nodes = self.path or Nodes()
        self._lineage = self.tally.lineage
        self._operations = 0
        self._depth = 0

    def __enter__(self) -> Self:
        """Begin to record; entered again inside itself it changes nothing."""
        if self._depth == 0:
            self._nodes.begin(_sequence())
            self.tracker.install(self.crossed, self.path, layers=self.layers)
            try:
                self._begin()
            except BaseException:
                self.tracker.remove()
                raise
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording and take everything away that was installed."""
        self._depth -= 1
        if self._depth:
            return
        try:
            self._end(kind, error, trace)
        finally:
            self.__dict__.pop("__torch_dispatch__", None)  # it would keep itself alive
            self.tracker.remove()
            self._nodes.begin(0)
            self.tally.clear()

    def _begin(self) -> None:
        if self.path is not None:
            self.__dict__["__torch_dispatch__"] = self.path.handler(self)
        super().__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation as it would have run, then note what came out."""
        if types and self.disassembled(types):
            return NotImplemented
        self._operations += 1
        try:
            out = self.execute(func, args, kwargs or {})
        except Exception as error:
            self.raised(func, error)
            raise
        self.note(func, args, out)
        return out

    def disassembled(self, types: Any) -> bool:
        """Tell whether a subclass takes the operation apart, whose parts come here again; count it."""
        if all(kind.__torch_dispatch__ is _NO_DISPATCH for kind in types):
            return False
        self.tally.took_apart(types)
        return True

    def raised(self, func: OpOverload, error: Exception) -> None:
        """Note that an operation raised."""
        self.failed = Failed(id(error), plan_of(func).name, self._nodes.get(_running_number()))

    def note(  # noqa: C901, PLR0912, PLR0915  # each part made a function would cost a call
        self, func: OpOverload, args: tuple[Any, ...], out: Any
    ) -> None:
        """Note what came out of an operation."""
        plan = self._plans.get(id(func))
        if plan is None:
            plan = self.plan(func)
        sequence = _sequence()
        if self._lineage is None and sequence == self._nodes.next:  # no node of the graph is to be attributed
            if plan.kind is _SKIP or plan.kind is _VIEW:
                return
            if plan.kind is _SAME:
                self._inherit(args[0], out)
                return
        node = _current_node()
        if node is None:
            if not _grad_enabled() and frames_match(ENGINE):
                return  # the end of a backward belongs to no node, such as DDP copying averages back
            phase, origin = _FORWARD, self._here(_FORWARD)
        elif self._where.recomputing:
            phase, origin = _RECOMPUTE, self._here(_RECOMPUTE)
        elif _grad_enabled() and frames_match(_CHECKPOINT):
            phase, origin = _RECOMPUTE, self._again(self._nodes.get(node._sequence_nr()))
        else:
            number = node._sequence_nr()
            if number == _ACCUMULATE:
                return
            phase, origin = _BACKWARD, self._nodes.get(number) or self.lost()
        # Nodes made since the last operation are this one's: its own comes into being just before it runs.
        if self._nodes.next < sequence:
            self._nodes.made(sequence, origin)
        kind = plan.kind
        if self._lineage is not None:
            self._lineage.read(args)
        if kind is _MEASURE:
            if type(out) in self.plain:
                self._measure(origin, phase, plan.name, "output", out)
                if plan.rounds and phase is _FORWARD:
                    self.tally.constants(origin, plan.name, args, out)
            else:
                for slot, tensor in tensors_in(out, "output"):
                    self._measure(origin, phase, plan.name, slot, tensor)
        elif kind is _SAME:
            self._inherit(args[0], out)
        elif kind is _CAST or kind is _COPY:
            self._copied(plan.name, origin, phase, args[kind is _COPY], out)
        if self._lineage is not None and (kind is _SAME or kind is _VIEW):
            self._lineage.passed(out)

    def plan(self, func: Any) -> OpPlan:
        """Work out once how to record an overload; known by identity, which hashing goes through C++ for."""
        self._known.append(func)
        plan = self._plans[id(func)] = plan_of(func)
        if not isinstance(func, OpOverload):
            self.tally.not_audited[f"the inside of {plan.name}: only its results are seen"] += 1
        return plan

    def _here(self, phase: Phase) -> Origin:
        """Return the origin at the running module and the user's running line."""
        return self.origin(self.source.spot(3), phase)

    def origin(self, spot: Spot | None, phase: Phase) -> Origin:
        """Return the origin at the running module and a line."""
        key = (self._where.current, spot, phase)
        origin = self._origins.get(key)
        if origin is None:
            module = self.tracker.path(self._where.current)
            origin = self._origins[key] = Origin(module, phase, *self.source.line(spot))
        return origin

    def _again(self, around: Origin | None) -> Origin:
        """Return the origin of a line that a backward runs again outside of any module call.

        `around` is where the running node comes from: the line's module is that one or lies above it.
        """
        spot = self.source.spot(3)
        base = around.module if around is not None else ""
        key = (base, spot, _RECOMPUTE)
        origin = self._origins.get(key)
        if origin is None:
            ran = {
                o.module
                for k, o in self._origins.items()
                if isinstance(k, tuple) and k[1:] == (spot, _FORWARD)
            }
            above = [module for module in ran if f"{base}.".startswith(f"{module}." if module else "")]
            module = max(above, key=len, default=base)
            origin = self._origins[key] = Origin(module, _RECOMPUTE, *self.source.line(spot))
        return origin

    def lost(self) -> Origin:
        """Return the origin of backward operations whose forward was not recorded."""
        return self._origins.setdefault(None, Origin("", Phase.BACKWARD, "", 0))

    def crossed(self, module: int, slot: str, value: Any) -> None:
        """Note the tensors that enter or leave a module."""
        self.tally.crossed(self.door(module), slot, value)

    def door(self, module: int) -> Origin:
        """Return the origin of what enters and leaves a module."""
        origin = self._origins.get(module)
        if origin is None:
            origin = self._origins[module] = Origin(self.tracker.path(module), _FORWARD, "", 0)
        return origin

    def states(self, held: Iterable[State]) -> None:
        """Measure parameters and their gradients; call it outside of the recording."""
        self.tally.measure_all(
            (Origin(module, Phase.STATE, "", 0), slot, tensor) for module, slot, tensor in held
        )

    def sources(self) -> dict[Site, list[Site]]:
        """Return what each operation's results were made of, in order of execution."""
        return self.tally.sources()

    @property
    def operations(self) -> int:
        """Return how many operations were seen."""
        return self._operations if self.path is None else int(self.path.operations)

    def adopt(self, model: torch.nn.Module, name: str) -> None:
        """Follow one more model, whose modules' names begin with this one."""
        self.tracker.adopt(model, name)
        if self.path is not None:
            self.path.name(filled(self.tracker))

    def fetch(self) -> Fetched:
        """Bring what was recorded to the host."""
        return self.book.fetch()

    def follow_gradient(self, module: int, place: int, result: torch.Tensor) -> None:
        """See to it that the gradient of a module's result is measured, where only modules are."""
        raise NotImplementedError

    def gradient(self, module: int, place: int, grad: torch.Tensor) -> None:
        """Measure the gradient of a module's result, where only modules are measured."""
        raise NotImplementedError

    def trace(self, fetched: Fetched) -> Trace:
        """Return the trace of what was recorded."""
        return Trace(
            sites=fetched.sites,
            casts=fetched.casts,
            modules=self.tracker.infos(),
            not_audited=dict(self.tally.not_audited) | self.tracker.not_audited(),
            operations=self.operations,
            measured=self.book.measured,
            constants=self.tally.rounded(),
        )
