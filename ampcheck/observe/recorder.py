"""The recorder: one dispatch mode that sees every operation of a step, forward, backward and casts."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any, Self

import torch
from torch._ops import OpOverload

from ampcheck.observe import modes
from ampcheck.observe.compiled import compiled_path, filled
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.execution import Args, Execute, Failed, Kwargs, State, run_op
from ampcheck.observe.failure import Caught
from ampcheck.observe.lanes import Lanes, after_sources
from ampcheck.observe.model.modules import ModuleTracker, tensors_in
from ampcheck.observe.modes import Way
from ampcheck.observe.ops import OpKind, OpPlan, plan_of
from ampcheck.observe.origins import Nodes, Origins, running_number
from ampcheck.observe.reference.sharing import ENGINE
from ampcheck.observe.seen import Seen
from ampcheck.observe.source import frames_match, source_finder
from ampcheck.observe.statistics.step_record import Fetched, StepRecord
from ampcheck.observe.tally import Origin, Tally
from ampcheck.observe.threads import THREADS, OtherThreads
from ampcheck.values.trace import Phase, Site, Trace

#: Nodes whose backward the program has written: it has lines of its own.
_BY_HAND = torch.autograd.function.BackwardCFunction
#: What was run backward and could not be attributed.
FORWARD_UNSEEN = "backward operations whose forward was not seen"
#: The sequence number of nodes that add a gradient to a parameter: no operation of the forward.
_ACCUMULATE = 2**64 - 1

_SKIP, _VIEW, _SAME = OpKind.SKIP, OpKind.VIEW, OpKind.SAME
_CAST, _COPY, _MEASURE = OpKind.CAST, OpKind.COPY, OpKind.MEASURE
_FORWARD, _BACKWARD, _RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE
_grad_enabled = torch.is_grad_enabled
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr

_NO_FUNCTIONS = torch._C.DisableTorchFunction


class Recorder(modes.OwnMode):
    """Records what is run inside; nothing of it stays behind, and no number of the step changes.

    Statistics stay on the tensors' device until `trace` reads them, once. No tensor is kept alive.
    """

    layers = False  #: whether only what enters and leaves modules is measured
    plain: frozenset[type] = frozenset({torch.Tensor})  #: kinds of a result that are one tensor of numbers
    #: Without this an operator of higher order, such as flex_attention, raises.
    supports_higher_order_operators = True

    over = (WideCompute,)

    def __init__(
        self,
        model: Any,
        *,
        samples: int = 0,
        most: int = 0,
        execute: Execute = run_op,
        compiled: bool = True,
        step_record: StepRecord | None = None,
    ) -> None:
        """Prepare to record steps of a model.

        `samples` elements of each result are kept for comparison, at most `most` are read where it is not 0;
        `execute` runs an operation; `compiled` lets C do what it can, where it was built and neither of them is
        wanted: the trace is the same; `step_record` is written into instead of a new one.
        """
        super().__init__()
        self.execute = execute
        self.tracker = ModuleTracker(model)
        #: Does in C, where it was built, what `__torch_dispatch__` does, on tables of its own.
        self.path = None
        if compiled and not samples and not most and step_record is None:
            self.path = compiled_path(self, None if execute is run_op else execute)
        self._where = self.path or self.tracker
        self.step_record = StepRecord(samples, self.path, most) if step_record is None else step_record
        tally = self.tally = Tally(self.step_record, self.path or Seen(), follow=bool(samples))
        self._measure, self._inherit, self._copied = tally.measure, tally.inherit, tally.copied
        self.failed: Failed | None = None  #: the last operation that raised
        self._caught = Caught()
        #: Told of an error of our own, where that must not end what is recorded.
        self.spared: Callable[[Exception], None] | None = None
        #: Returns the running module by the frames that run, where modules are not called.
        self.by_frames: Callable[[], int] | None = None
        self.source = source_finder()
        self._plans: dict[int, OpPlan] = {}
        self._known: list[OpOverload] = []
        self.origins = Origins(self.tracker, self._where, self.source)
        self._nodes = self.path or Nodes()
        self._lineage = self.tally.lineage
        self._threads = OtherThreads(self._disown)
        self.lanes: Lanes | None = None  #: follow threads of the program's own, where that is wanted
        self.first_node = 0  #: number that the graph's next node had when the recording began
        self._operations = 0
        self._depth = 0

    def follow_threads(self) -> None:
        """Record what threads of the program's own run, too, where Python sees every operation."""
        if self.path is None:
            self.lanes = self._threads.lanes = Lanes(self)
            self.tracker.followed = self.lanes.running

    @property
    def heard_threads(self) -> bool:
        """Whether threads of the program's own have run a part of what was recorded, seen or not."""
        return bool(self._threads.ranges) or (self.lanes is not None and self.lanes.used)

    def turn(self) -> AbstractContextManager[bool] | None:
        """Return what the running thread has to wait for, None where it is not followed."""
        return self.lanes.turn() if self.lanes is not None and get_ident() in self.lanes.running else None

    def __enter__(self) -> Self:
        """Begin to record; entered again inside itself it changes nothing."""
        if self._depth == 0:
            self.first_node = _sequence()
            self._nodes.begin(self.first_node)
            self._threads.listen()
            self.tracker.install(self.crossed, self.path, layers=self.layers)
            try:
                self._begin()
            except BaseException:
                self._threads.stop_listening()
                self.tracker.remove()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_raised: object) -> None:
        """Stop recording and take everything away that was installed."""
        self._depth -= 1
        if self._depth:
            return
        try:
            self._end()
        finally:
            self._threads.stop_listening()
            self.tracker.remove()
            self._nodes.begin(0)
            self.tally.clear()

    def _begin(self) -> None:
        if self.path is not None:
            self.__dict__["__torch_dispatch__"] = self.path.handler(self)
        super()._begin()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        """Run an operation as it would have run, then note what came out."""
        if self.lanes is not None:
            return self.lanes.run(None, func, types, args, kwargs or {})
        return self.dispatched(func, types, args, kwargs or {})

    def dispatched(self, func: OpOverload, types: Any, args: Args, kwargs: Kwargs) -> Any:
        """Do so while no other thread is recorded."""
        if types:
            way = self.way(types)
            if way is Way.APART:
                return NotImplemented
            if way is Way.UNSEEN:
                return func(*args, **kwargs)
        self._operations += 1
        try:
            out = self.execute(func, args, kwargs)
        except Exception as error:
            self.raised(func, error, args)
            raise
        try:
            with _NO_FUNCTIONS():
                self.note(func, args, out)
        except Exception as error:  # noqa: BLE001  # of our own
            self.gave_way(error)
        return out

    def gave_way(self, error: Exception) -> None:
        """Take note of an error of our own; where a script runs, it goes on unseen."""
        if self.spared is None:
            raise error
        self.step_aside()
        self.spared(error)

    def way(self, types: Any) -> Way:
        """Return what is to become of an operation on a subclass; one that takes it apart is counted."""
        found = modes.way(types)
        if found is Way.APART:
            self.tally.took_apart(types)
        return found

    def raised(self, func: OpOverload, error: Exception, args: Args = ()) -> None:
        """Note that an operation raised."""
        self.failed = Failed(id(error), plan_of(func).name, self._nodes.get(running_number()))
        try:
            self._caught.note(self.failed.op, error, args)
        except Exception as own:  # noqa: BLE001  # the script is to have its own error
            self.gave_way(own)

    def note(  # noqa: C901, PLR0912, PLR0915  # each part made a function would cost a call
        self, func: OpOverload, args: Args, out: Any
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
        elif _grad_enabled() and self.origins.runs_again():
            phase, origin = _RECOMPUTE, self.origins.again(self.whose(node), self.source.spot())
        else:
            if node._sequence_nr() == _ACCUMULATE:
                return
            phase, origin = _BACKWARD, self.whose(node, casts=plan.kind is not _MEASURE)
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
        spot = self.source.spot(3)
        if self.by_frames is not None:
            self.tracker.current = self.by_frames()
        return self.origins.of(spot, phase)

    def whose(self, node: Any, *, casts: bool = False) -> Origin:
        """Return where a node of the graph comes from; what only `casts` in a hook unpacks what was saved."""
        marked = None if self.lanes is None else self.lanes.whose(node)
        made = marked or self._nodes.get(node._sequence_nr()) or self.origins.lost()
        if casts and not isinstance(node, _BY_HAND):
            return made
        return self.origins.within(made, self.source.spot_in_backward())

    def _disown(self) -> None:
        """Attribute to nobody the nodes that bear a number which another thread has used too."""
        self._threads.disown(self._nodes, self.first_node, self.origins.lost())

    def resumes(self) -> None:
        """Attribute to nobody the nodes that were made while nothing was recorded."""
        self._nodes.made(_sequence(), self.origins.lost())

    def crossed(self, module: int, slot: str, value: Any) -> None:
        """Note the tensors that enter or leave a module."""
        turn = nullcontext(enter_result=True) if self.lanes is None else self.lanes.turn()
        try:
            with _NO_FUNCTIONS(), turn as mine:
                if mine:
                    self.tally.crossed(self.origins.door(module), slot, value)
        except Exception as error:  # noqa: BLE001  # of our own
            self.gave_way(error)

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
        return self.step_record.fetch()

    def trace(self, fetched: Fetched) -> Trace:
        """Return the trace of what was recorded."""
        threads = self.lanes is not None and self.lanes.used
        missed, caught = self._caught.fetch(self.tracker.parameters())
        return Trace(
            sites=after_sources(fetched.sites, self.sources()) if threads else fetched.sites,
            casts=fetched.casts,
            modules=self.tracker.infos(),
            not_audited=self.tally.not_audited | self.tracker.not_audited() | self._unseen(fetched) | missed,
            operations=self.operations,
            measured=self.step_record.measured,
            constants=self.tally.rounded(),
            caught=caught,
        )

    def _unseen(self, fetched: Fetched) -> dict[str, int]:
        """Return how many operations were not seen, or not their forward."""
        nobodys = (s for s in fetched.sites if s.phase is _BACKWARD and s.op and not (s.module or s.file))
        ran = {FORWARD_UNSEEN: sum(1 for _ in nobodys) if self.origins.any_lost else 0}
        ran[THREADS] = self._threads.nodes
        return {text: count for text, count in ran.items() if count}
