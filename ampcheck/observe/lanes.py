"""Threads of the program's own that run a part of a recorded step: each has a lane of its own in the recording.

Autograd counts nodes by thread, so each lane knows the numbers of its own nodes. Where another thread reads what a lane
has made, the nodes behind that are marked with the lines that they come from.
"""

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import thread as pool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.modes import OwnMode
from ampcheck.observe.origins import Nodes
from ampcheck.observe.reference.sharing import among_ranks
from ampcheck.observe.statistics.memory import tensors_of

if TYPE_CHECKING:
    from ampcheck.observe.recorder import Recorder
    from ampcheck.values.stats import TensorStats
    from ampcheck.values.trace import Site

_sequence = torch._C._autograd._get_sequence_nr
_NO_FUNCTIONS = torch._C.DisableTorchFunction
#: What a mark is called among the metadata of a node.
_MARK = "ampcheck"
#: Seconds that a thread waits for its turn, before the step is given up: an operation may itself wait for threads.
_PATIENCE = 10.0


class Lane(OwnMode):
    """Has the operations of one job of a thread recorded."""

    over = (WideCompute,)

    def __init__(self, lanes: "Lanes") -> None:
        """Prepare; the first node is the thread's next one."""
        super().__init__()
        self.lanes = lanes
        self.nodes = Nodes()
        self.nodes.begin(_sequence())

    def __enter__(self) -> Self:
        """Begin to record this thread."""
        self.lanes.running[threading.get_ident()] = self
        return super().__enter__()

    def __exit__(self, *raised: object) -> None:
        """Stop recording this thread."""
        super().__exit__(*raised)
        self.lanes.running.pop(threading.get_ident(), None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        """Run an operation as it would have run, and note what came out."""
        return self.lanes.run(self, func, types, args, kwargs or {})

    def goes_on(self) -> None:
        """Begin with the node that is being made: an operation of this thread is running, and was not followed."""
        self.nodes.begin(_sequence() - 1)

    def mark(self, node: Any) -> None:
        """Mark the nodes of this lane behind one, with where they come from."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            origin = self.nodes.get(one._sequence_nr())
            if origin is not None and _MARK not in one.metadata:
                one.metadata[_MARK] = origin
                waiting += [before for before, _ in one.next_functions if before is not None]


class Lanes:
    """The threads that a recorder follows beside the one that it was entered in; one records at a time."""

    def __init__(self, recorder: "Recorder") -> None:
        self._recorder = weakref.ref(recorder)
        self._lock = threading.RLock()
        self.open = False
        self.used = False  #: a thread was followed
        self.running: dict[int, Lane] = {}  #: by thread
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], Lane]] = {}  #: what lanes made, by tensor

    def close(self) -> None:
        """Let every operation of other threads pass from here on, unseen, once the one that runs is recorded."""
        mine = self._lock.acquire(timeout=_PATIENCE)
        self.open = False
        self._made.clear()
        if mine:
            self._lock.release()

    def holds(self, job: Any) -> bool:
        """Tell whether a job needs no lane: it is part of one that has, or waits for such jobs."""
        waits = isinstance(job, threading.Thread) and getattr(job, "_target", None) is vars(pool)["_worker"]
        return self.open and (waits or threading.get_ident() in self.running)

    def begins(self) -> Lane | None:
        """Return a lane for a thread, or a job of a pool of threads, that is about to begin; None to pass it over."""
        if not self.open or among_ranks():
            return None
        self.used = True
        return Lane(self)

    def is_of_step(self, tensor: torch.Tensor) -> bool:
        """Tell whether the thread that is recorded has made a tensor in this step."""
        recorder, node = self._recorder(), tensor.grad_fn
        return bool(recorder and node and recorder._nodes.get(node._sequence_nr()) is not None)

    def run(self, lane: Lane | None, func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
        """Have an operation of a lane, or of no lane, run and recorded while no other thread records."""
        recorder = self._recorder()
        if recorder is None:
            return func(*args, **kwargs)
        with self.turn() as mine:
            if mine:
                self.reads(lane, (*args, *kwargs.values()))
                if lane is None:
                    return recorder.dispatched(func, types, args, kwargs)
                out = self._in_lane(lane, recorder, func, types, args, kwargs)
                self._made |= {id(one): (weakref.ref(one), lane) for one in tensors_of((out,))}
                return out
        return func(*args, **kwargs)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait until no other thread records; False where threads are not followed, or no longer."""
        mine = self._acquired()
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()

    def _acquired(self) -> bool:
        if not self.open:
            return False
        if self._lock.acquire(timeout=_PATIENCE):
            return True
        self.open = False
        recorder = self._recorder()
        if recorder is not None:
            recorder.gave_way(TimeoutError("operations of several threads wait for each other"))
        return False

    def _in_lane(
        self, lane: Lane, recorder: "Recorder", func: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        tracker = recorder.tracker
        held = recorder._nodes, recorder.by_frames, tracker.current, tracker.recomputing
        recorder._nodes, tracker.recomputing = lane.nodes, False
        recorder.by_frames = recorder.by_frames or tracker.by_frame
        try:
            return recorder.__torch_dispatch__(func, types, args, kwargs)
        finally:
            recorder._nodes, recorder.by_frames, tracker.current, tracker.recomputing = held

    def reads(self, lane: Lane | None, values: Iterable[Any]) -> None:
        """Mark the nodes behind tensors that another thread has made."""
        if lane is None and not self._made:
            return
        with _NO_FUNCTIONS():
            for tensor in tensors_of(values):
                known = self._made.get(id(tensor))
                maker = known[1] if known is not None and known[0]() is tensor else None
                node = None if maker is lane else tensor.grad_fn
                if node is not None and maker is not None:
                    del self._made[id(tensor)]
                    maker.mark(node)
                elif node is not None:
                    self._border(node)

    def _border(self, node: Any) -> None:
        """Mark a node of the thread that is recorded first, where a lane goes on from it."""
        recorder = self._recorder()
        if recorder is not None and _MARK not in node.metadata:
            node.metadata[_MARK] = recorder._nodes.get(node._sequence_nr()) or recorder.origins.lost()

    def whose(self, node: Any) -> Any:
        """Return where a marked node comes from, None for any other."""
        return node.metadata.get(_MARK) if self.used else None


def after_sources(
    sites: "Mapping[Site, TensorStats]", sources: "Mapping[Site, Iterable[Site]]"
) -> "dict[Site, TensorStats]":
    """Return sites in an order in which none comes before what it was made of: threads ran at the same time."""
    found: dict[Site, TensorStats] = {}
    begun: set[Site] = set()
    waiting: list[Site] = [*sites][::-1]
    while waiting:
        site = waiting[-1]
        before = [] if site in begun else [one for one in sources.get(site, ()) if one not in begun]
        begun.add(site)
        if before:
            waiting += reversed(before)
        else:
            waiting.pop()
            if site in sites:
                found.setdefault(site, sites[site])
    return found
