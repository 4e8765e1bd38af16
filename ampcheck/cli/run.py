"""Run a training script as it is, and report what mixed precision does in it.

The script's exit status, output and random numbers are its own; the report goes to standard error, or to a file
with -o. A few steps are recorded, fewer with FP32 beside them; the others run as always.
"""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.children import Children, Manner, joined
from ampcheck.cli import live, output
from ampcheck.cli.check import count
from ampcheck.cli.live import LiveLine
from ampcheck.imports import after_import
from ampcheck.launch import Program, launch, parse
from ampcheck.scalars import ScalarFile
from ampcheck.settings import Schedule
from ampcheck.standing import Numbers, standing

if TYPE_CHECKING:
    from ampcheck.script import Session

NO_TRAINING = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck run`."""
    _add_program(parser.add_argument_group("program"))
    _add_recording(parser.add_argument_group("what is recorded"))
    while_running = parser.add_argument_group("while it runs")
    while_running.add_argument(
        "--live",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a line at the bottom of the terminal: step, loss scale, skipped steps, worst underflow (default)",
    )
    while_running.add_argument(
        "--tensorboard",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="write the loss scale, skipped steps, losses and worst underflow for TensorBoard",
    )
    output.add_arguments(parser)
    parser.set_defaults(fail_on="never")


def _add_program(program: Any) -> None:
    program.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGUMENTS]",
        help="a file, a folder with a __main__.py, or a command on the PATH",
    )
    program.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module instead"
    )
    program.add_argument(
        "-c", dest="code", nargs=argparse.REMAINDER, metavar="CODE", help="run a line of Python instead"
    )


def _add_recording(watch: Any) -> None:
    watch.add_argument(
        "--every", type=count, default=50, metavar="N", help="record one step in N (default: 50)"
    )
    watch.add_argument(
        "--first", type=count, default=2, metavar="N", help="and the first N steps (default: 2)"
    )
    watch.add_argument(
        "--beside",
        choices=("few", "all"),
        default="few",
        help="run FP32 beside few of them, the first and ever more rarely then (default), or beside all",
    )
    watch.add_argument(
        "--steps",
        dest="only",
        type=steps,
        default=None,
        metavar="N,N",
        help="record these steps, from 0 on, and no others",
    )
    watch.add_argument(
        "--as-cuda",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let the CPU stand in for CUDA (default: where the script asks for CUDA and there is none)",
    )
    watch.add_argument(
        "--what-if",
        choices=("fp16", "bf16"),
        default="",
        help="audit a script that trains in FP32 as if mixed precision were added to it",
    )


def run(options: argparse.Namespace) -> int:
    """Run a script, watched, and publish the report; the exit status is the script's."""
    program = _program(options)
    watched = _Watched(options, program)
    stop = after_import("torch", watched.begin)
    error: BaseException | None = None
    try:
        ended = launch(program)
        error = ended.error
    finally:
        stop()
        watched.end(error)
    status = watched.publish()
    return ended.status or status


class _Watched:
    """The watch over a script, from when it first imports torch."""

    def __init__(self, options: argparse.Namespace, program: Program) -> None:
        self._options, self._program = options, program
        schedule = Schedule(options.first, options.every, options.only, beside=options.beside)
        named = any("cuda" in word for word in program.arguments)
        self._manner = Manner(program.shown, schedule, options.as_cuda, named, options.what_if)
        self._children = Children(self._manner)
        self._session: Session | None = None
        self._context: Any = None
        self._live = LiveLine() if options.live and live.wanted() else None
        self._file = ScalarFile(options.tensorboard) if options.tensorboard else None
        self._numbers = Numbers()
        self._notes: tuple[str, ...] = ()

    def begin(self) -> None:
        """Begin to watch."""
        self._session = self._manner.session(self._told)
        self._session.watcher.started = self._children.follow
        self._context = self._session.watching()
        self._context.__enter__()

    def _told(self, watcher: Any) -> None:
        """Say where the loop stands; of a job's ranks the first does."""
        if self._session is None or not self._session.ranks.first:
            return
        if self._live is not None:
            self._live.draw(lambda: standing(watcher).line)
        if self._file is not None:
            self._file.add(self._numbers.fresh(watcher))

    def end(self, error: BaseException | None) -> None:
        """Stop watching a script that ended with an error, or without."""
        if self._live is not None:
            self._live.close()
        if error is not None:
            self._notes = (f"the script ended with {type(error).__name__}: this is about what ran before",)
        if self._session is not None and error is not None:
            self._session.watcher.raised(error)
        if self._context is not None:
            self._context.__exit__(None, None, None)
        if self._session is not None and self._file is not None and self._session.ranks.first:
            self._file.add(self._numbers.fresh(self._session.watcher))

    def publish(self) -> int:
        """Write the report; return the exit status for a script that went well."""
        if self._session is None:
            print("ampcheck: no training was seen: the script never imported torch", file=sys.stderr)
            return NO_TRAINING
        session, ranks = self._session, self._session.ranks
        others = self._children.reports()
        session.watcher.children -= len(others)
        ranks.send(lambda: session.report(self._program.shown, self._notes))
        if not ranks.first:
            return 0
        report = joined(ranks.gather(session.report(self._program.shown, self._notes)), others)
        # Standard output is the script's.
        with contextlib.redirect_stdout(sys.stderr):
            status = output.publish(report, self._options)
        trained = report.loop is not None and bool(report.loop.steps)
        return status if trained else NO_TRAINING


def _program(options: argparse.Namespace) -> Program:
    if options.module:
        return parse(options.module[1:], options.module[0], None)
    if options.code:
        return parse(options.code[1:], None, options.code[0])
    own = options.program[:1] == ["--"]  # ends our options; one further on is the script's
    return parse(options.program[own:], None, None)


def steps(text: str) -> frozenset[int]:
    """Return step numbers written as 0,10,20."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected step numbers such as 0,10,20, got {text!r}")
    return frozenset(map(int, parts))
