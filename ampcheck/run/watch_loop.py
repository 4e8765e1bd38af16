"""A training loop of one's own, watched: what `ampcheck run` sees of a script, for the lines inside a `with`."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from ampcheck.errors import TargetError
from ampcheck.observe.script import open_watches
from ampcheck.observe.script.watcher import Watcher
from ampcheck.run.keeping import Keeper, unfinished
from ampcheck.run.session import Session
from ampcheck.saved.replacing import writable
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule

#: What is said of a watch that begins inside another, or inside an audit.
YIELDED = "this watch saw nothing: another watch or audit is already open in this process"

#: What a loop in FP32 can be watched in.
PRECISIONS = ("fp16", "bf16")


def watch(
    model: torch.nn.Module | Iterable[torch.nn.Module] | None = None,
    optimizer: Any = None,
    scaler: Any = None,
    *,
    every: int = 50,
    first: int = 2,
    **options: Any,
) -> "Watch":
    """Watch the training loop inside a `with`; its `report()` says what mixed precision does there.

    Without a model it is whatever is trained there. The first steps and one in `every` are recorded, ever fewer of
    them in full, compared with FP32; the others run as always. Optimizers and scalers that were made before may
    be given, one or several; those that are made inside are found. Further options: `steps` (a set of step numbers
    to record, and no others), `reference` ("all": each recorded step in full), `as_cuda` (the CPU stands in for CUDA
    inside), `what_if` ("fp16" or "bf16": a loop in FP32, as if mixed precision were added to it), `name` (what the
    model is called in the report), `on_step` (called with the watch after every step) and `keep` (a file, r.json, that
    the report is written to while the loop runs: it is there whatever ends the process).
    """
    for name, value in (("first", first), ("every", every)):
        if value < 0:
            raise TargetError(f"expected a number of steps, 0 or more, got {name}={value!r}")
    steps = options.pop("steps", None)
    beside = options.pop("reference", "few")
    if beside not in {"few", "all"}:
        raise TargetError(f"expected reference to be few or all, got {beside!r}")
    schedule = Schedule(first, every, None if steps is None else frozenset(steps), beside=beside)
    return Watch(_several(model), _several(optimizer), _several(scaler), schedule, **options)


class Watch:
    """A watch over a training loop."""

    def __init__(  # noqa: PLR0913  # what is watched, and how
        self,
        models: list[torch.nn.Module],
        optimizers: list[Any],
        scalers: list[Any],
        schedule: Schedule,
        *,
        as_cuda: bool = False,
        what_if: str = "",
        name: str = "",
        on_step: Callable[["Watch"], None] | None = None,
        keep: str | Path | None = None,
    ) -> None:
        _check(
            "a model (torch.nn.Module), the one you train",
            models,
            lambda held: isinstance(held, torch.nn.Module),
        )
        _check("an optimizer, the one that steps", optimizers, _having("param_groups", "step"))
        scaler = _having("is_enabled", "get_growth_factor")
        _check("a GradScaler, the one that scales the loss", scalers, scaler)
        if what_if not in {"", *PRECISIONS}:
            raise TargetError(f"expected what_if to be {' or '.join(PRECISIONS)}, got {what_if!r}")
        self._models, self._optimizers, self._scalers = models, optimizers, scalers
        self._name, self._on_step = name, on_step
        self._target = " and ".join(type(model).__name__ for model in models) or "a training loop"
        self._as_cuda = as_cuda
        self._session = Session(schedule, self._stepped, as_cuda=as_cuda, what_if=what_if)
        self._keep = None if keep is None else Path(keep).absolute()
        if self._keep is not None:
            writable(self._keep)
        self._keeper = Keeper(lambda: unfinished(self._own(), self.steps), self._kept)
        self._stack = ExitStack()
        self._begun = self._over = False
        self._notes: dict[str, None] = {}

    def __enter__(self) -> Self:
        """Begin to watch."""
        if self._begun:
            raise TargetError(
                "expected a watch that has not begun, got one that has; call ampcheck.watch again for another"
            )
        self._begun = True
        if open_watches.taken():
            self._yield()
            return self
        with ExitStack() as stack:
            self._tell(stack.enter_context(self._session.watching()))
            self._stack = stack.pop_all()
        return self

    def _yield(self) -> None:
        """See nothing: something else of ampcheck's watches this process."""
        self.note(YIELDED)
        sys.stderr.write(f"ampcheck: {YIELDED}\n")

    def _tell(self, watcher: Watcher) -> None:
        """Tell what was made before."""
        for model in self._models:
            watcher.tape.give(model, self._name)
        for optimizer in self._optimizers:
            watcher.owns(optimizer, [p for group in optimizer.param_groups for p in group["params"]])
        for scaler in self._scalers:
            watcher.made(scaler, _settings(scaler))
            if self._as_cuda and not scaler.is_enabled():
                self.note(
                    "the scaler was made before the CPU stood in for CUDA, and torch has switched it off: "
                    "make it inside the watch"
                )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching; nothing stays behind, and what was seen is kept."""
        self._keeper.close()
        if error is not None:
            self._session.watcher.raised(error)
        self._stack.close()
        self._over = True
        if error is not None:
            self.note(f"the loop ended with {type(error).__name__}: the report covers what ran before")
        if self._keep is not None:
            Keeper(self._own, self._kept).write()
        if not self._session.ranks.first:
            self._session.ranks.send(self._own())

    def _kept(self) -> Path:
        """Return the file that the report is kept in, of a rank but the first with its number."""
        assert self._keep is not None  # else nothing is kept
        rank = self._session.ranks.rank
        return self._keep.with_suffix(f".rank{rank}.json") if rank else self._keep

    def _stepped(self, watcher: Watcher) -> None:
        if self._keep is not None and watcher.tape.recorded:
            self._keeper.stir()
        if self._on_step is not None:
            self._on_step(self)

    @property
    def steps(self) -> int:
        """Return how often the weights were updated so far, or would have been."""
        return self._session.watcher.steps

    @property
    def first_rank(self) -> bool:
        """Tell whether this process is the one that has the report of all ranks."""
        return self._session.ranks.first

    @property
    def scale(self) -> float | None:
        """Return the last loss scale known, None where none is; asking does not make a GPU wait."""
        return self._session.watcher.scales.current

    @property
    def skipped(self) -> int:
        """Return how many steps are known to have been skipped."""
        return sum(event.skipped for event in self._session.watcher.scales.events)

    @property
    def watcher(self) -> Watcher:
        """Return the listener of the loop's events, for frameworks whose events are not torch's."""
        return self._session.watcher

    def give(self, model: torch.nn.Module, name: str) -> None:
        """Name a part of what is trained."""
        self.watcher.tape.give(model, name)

    def note(self, text: str) -> None:
        """Add a sentence on how this was seen to the report."""
        self._notes[text] = None

    def report(self) -> Report:
        """Return what was seen so far, judged; of several ranks the first returns the sum, once they have ended."""
        return self._session.ranks.gather(self._own())[0] if self._over else self._own()

    def _own(self) -> Report:
        return self._session.report(self._target, tuple(self._notes))

    def save(self, path: str | Path) -> None:
        """Write the report to a file, in the format of its ending; of several ranks the first one does."""
        if self._session.ranks.first:
            self.report().save(path)


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    one = (torch.nn.Module, torch.optim.Optimizer, str)  # of which some can be iterated over
    single = isinstance(given, one) or not isinstance(given, Iterable)
    return [given] if single else list(given)


def _check(expected: str, given: list[Any], fits: Callable[[Any], bool]) -> None:
    for held in given:
        if not fits(held):
            raise TargetError(
                f"expected {expected}, got {held!r}; watch(model, optimizer, scaler) takes them in this order"
            )


def _having(*names: str) -> Callable[[Any], bool]:
    return lambda held: all(hasattr(held, name) for name in names)


def _settings(scaler: Any) -> dict[str, Any]:
    """Return what a scaler was made with."""
    enabled = bool(scaler.is_enabled())
    asked = {"device": getattr(scaler, "_device", "cuda"), "enabled": enabled}
    if not enabled:
        return asked
    return {
        **asked,
        "init_scale": getattr(scaler, "_init_scale", 0.0),
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }
