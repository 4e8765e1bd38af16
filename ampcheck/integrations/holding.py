"""A watch that a framework's callback opens and closes."""

import atexit
import sys
import weakref
from pathlib import Path
from typing import Any

import ampcheck.renderers.saving  # noqa: F401  # a report can then be printed and saved
from ampcheck.renderers.terminal import render
from ampcheck.run.watch_loop import Watch, watch
from ampcheck.saved.report_json import to_json, write
from ampcheck.values.report import Report

_WIDTH = 100


class Holder:
    """Opens a watch when training begins, and publishes its report when training has ended."""

    def __init__(self, path: str | Path | None = None, **options: Any) -> None:
        """Prepare; the report goes to a file as JSON, or without a path as text to standard error.

        Options are those of `ampcheck.watch`: every, first, steps, what_if, as_cuda, name, on_step.
        """
        self._path, self._options = path, options
        self.watch: Watch | None = None  #: while training
        self.report: Report | None = None  #: of the training that ended last

    def begin(self, model: Any = None, optimizer: Any = None, scaler: Any = None) -> Watch:
        """Begin to watch."""
        self.end()
        self.watch = watch(model, optimizer, scaler, **self._options)
        self.watch.__enter__()
        # A framework whose training raises tells its callbacks nothing.
        _OPEN.add(self)
        return self.watch

    def end(self) -> None:
        """Stop watching, if that has not happened yet, and publish the report."""
        held, self.watch = self.watch, None
        if held is None:
            return
        _OPEN.discard(self)
        held.__exit__(None, None, None)
        self.publish(held.report(), first=held.first_rank)

    def publish(self, report: Report, *, first: bool = True) -> None:
        """Keep a report, and write it where it was asked for."""
        self.report = report
        if not first:
            return
        if self._path is not None:
            write(Path(self._path), to_json(report) + "\n")
        else:
            sys.stderr.write(render(report, width=_WIDTH, color=False) + "\n")


_OPEN: "weakref.WeakSet[Holder]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Keep what there is of trainings that nobody ended."""
    for holder in list(_OPEN):
        holder.end()
