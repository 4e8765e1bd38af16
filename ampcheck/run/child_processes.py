"""Processes that a script starts and trains in: each is watched as the script is, and leaves its report behind."""

import contextlib
import functools
import itertools
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.compare.merge import together
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ReportError
from ampcheck.run.import_hooks import after_import
from ampcheck.run.keeping import Keeper, unfinished
from ampcheck.run.limit import Limit
from ampcheck.run.wishes import NO_WISHES, Wishes
from ampcheck.saved.report_json import read, to_json, write
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule

if TYPE_CHECKING:
    from ampcheck.run.session import Session


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a script is watched: what its processes need to know."""

    target: str  #: what the report is about
    schedule: Schedule
    as_cuda: bool | None = None
    cuda_named: bool = False
    what_if: str = ""
    limit: tuple[int, float] | None = None  #: steps and seconds after which a process is stopped
    asked: Wishes = NO_WISHES  #: the precision that the script asks for

    def session(self, on_step: Callable[[Any], None] | None = None) -> "Session":
        """Return a new watch; `on_step` hears of every step."""
        from ampcheck.run.session import Session

        if on_step is None:
            on_step = Limit(*self.limit).stepped if self.limit is not None else _nothing

        return Session(
            self.schedule,
            on_step,
            as_cuda=self.as_cuda,
            cuda_named=self.cuda_named,
            what_if=self.what_if,
            follows=True,
            asked=self.asked,
        )


def _nothing(_: object) -> None:
    """Hear of a step, and go on."""


class Children:
    """The processes of one script."""

    def __init__(self, watch_options: WatchOptions) -> None:
        self._watch_options = watch_options
        self._numbers = itertools.count(1)
        self._folder: Path | None = None

    def follow(self, process: Any) -> None:
        """Watch a process that is about to start, where it runs a function."""
        run = getattr(process, "_target", None)
        if run is None or isinstance(run, Followed):
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ampcheck-"))
        place = str(self._folder / f"{next(self._numbers)}.json")
        early = functools.partial(_launched, process._Popen, _Early(self._watch_options, place))  # noqa: SLF001
        process._target, process._Popen = Followed(run, self._watch_options, place), early  # noqa: SLF001

    def reports(self) -> list[Report | None]:
        """Return what the processes that have ended have left, None of those without torch; clear it away."""
        if self._folder is None:
            return []
        left = sorted(self._folder.glob("*.json"), key=lambda path: int(path.stem))
        found = [_read(path) for path in left]
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        return found


def _read(path: Path) -> Report | None:
    try:
        return read(path) if path.stat().st_size else None
    except (ReportError, OSError):  # what one process has left is no reason to lose the rest
        return None


@dataclass(frozen=True, slots=True)
class Followed:
    """A function that a process runs, watched; where watching fails, it still runs."""

    run: Callable[..., Any]
    watch_options: WatchOptions
    place: str  #: where the report goes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        watch = _EARLY.pop(self.place, None) or _Watch(self.watch_options, self.place)
        notes: tuple[str, ...] = ()
        try:
            return self.run(*args, **kwargs)
        except BaseException as error:
            watch.raised(error)
            notes = (f"a process ended with {type(error).__name__}: the report covers what ran before",)
            raise
        finally:
            watch.end(notes)


class _Watch:
    """The watch over one process, from when it first imports torch."""

    def __init__(self, watch_options: WatchOptions, place: str) -> None:
        self._watch_options, self._place = watch_options, place
        self._open: list[tuple[Any, Any]] = []
        self._keeper = Keeper(lambda: self._report(()), lambda: Path(place))
        self._stop = after_import("torch", self._begin)

    def _begin(self) -> None:
        with contextlib.suppress(Exception):
            session = self._watch_options.session(self._on_step)
            context = session.watching()
            context.__enter__()
            self._open.append((session, context))

    def _on_step(self, watcher: Any) -> None:
        """Keep what was seen so far: a process may be killed."""
        if watcher.tape.recorded:
            self._keeper.stir()

    def _report(self, notes: tuple[str, ...], *, ended: bool = False) -> Report:
        """Return what was seen, with the rank of the process."""
        session, _ = self._open[-1]
        report: Report = session.report(self._watch_options.target, notes)
        if not ended:
            report = unfinished(report, session.watcher.steps)
        name = {_NAME: f"rank {session.ranks.rank}"} if session.ranks.size > 1 else {}
        return replace(report, environment={**report.environment, **name})

    def raised(self, error: BaseException) -> None:
        """Take note of what ends the process."""
        for session, _ in self._open:
            session.watcher.raised(error)

    def end(self, notes: tuple[str, ...]) -> None:
        """Stop watching, and leave a report; an empty one of a process without torch."""
        self._stop()
        self._keeper.close()
        with contextlib.suppress(Exception):
            if "torch" not in sys.modules:
                write(self._place, "")
            for _, context in self._open:
                context.__exit__(None, None, None)
                write(self._place, to_json(self._report(notes, ended=True)))


#: Watches that were begun before the function of their process was known, by where their reports go.
_EARLY: dict[str, _Watch] = {}


def begin_early(watch_options: WatchOptions, place: str) -> None:
    """Begin to watch a process that has not imported the script yet: names that it takes from torch are ours then."""
    _EARLY[place] = _Watch(watch_options, place)


class _Early:
    """Travels with what a spawned process prepares itself by, and begins the watch as it is read there."""

    #: It is read before the process has its path; where this cannot be imported, nothing is watched.
    _CODE = """
import pickle, sys
sys.path.insert(0, root)
try:
    from ampcheck.run.child_processes import begin_early
    begin_early(*pickle.loads(arguments))
except Exception:
    pass
finally:
    sys.path.remove(root)
"""

    def __init__(self, watch_options: WatchOptions, place: str) -> None:
        self._arguments = pickle.dumps((watch_options, place))

    def __reduce__(self) -> Any:
        return exec, (self._CODE, {"root": str(Path(__file__).parents[2]), "arguments": self._arguments})


def _launched(launch: Callable[[Any], Any], early: _Early, process: Any) -> Any:
    """Start a process; if it is spawned, it is handed what begins the watch."""
    del process._Popen  # noqa: SLF001  # it must not travel
    prepared = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {**prepared(name), "ampcheck": early}
    try:
        return launch(process)
    finally:
        spawn.get_preparation_data = prepared


#: Where a report says which rank of a job it is of, on its way to the script.
_NAME = "rank"


def joined(report: Report, reports: Iterable[Report | None]) -> Report:
    """Return a script's report with those of the processes that trained for it."""
    trained = [other for other in reports if other and other.loop is not None and other.loop.steps]
    if not trained:
        return report
    if report.loop is not None and report.loop.steps:
        note = f"{len(trained)} of the processes that the script started trained as well: the figures leave them out"
        coverage = report.verdict.coverage
        gaps = (*coverage.gaps, note)
        return judged(replace(report, notes=(*report.notes, note)), replace(coverage, gaps=gaps))
    whole = together(_named(trained)) if len(trained) > 1 else _nameless(trained[0])
    note = f"{len(trained)} of the processes that the script started trained: this is about them"
    return replace(whole, notes=(note, *whole.notes))


def _named(reports: list[Report]) -> Mapping[str, Report]:
    names = [report.environment.get(_NAME, "") for report in reports]
    if len(set(names)) < len(names):
        names = [f"process {number}" for number in range(1, len(reports) + 1)]
    return dict(sorted(zip(names, map(_nameless, reports), strict=True)))


def _nameless(report: Report) -> Report:
    return replace(report, environment={k: v for k, v in report.environment.items() if k != _NAME})
