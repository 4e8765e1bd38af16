"""Run a training script as it is, and report what mixed precision does in it.

The script's exit status, output and random numbers are its own; the report goes to standard error, or to a file
with -o. A few steps are recorded, fewer are compared with FP32; the others run as always.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ampcheck.cli import output, writing
from ampcheck.cli.check import count
from ampcheck.cli.several import add_what_if
from ampcheck.cli.watched import Watched
from ampcheck.run.import_hooks import after_import
from ampcheck.run.launch_script import Program, launch, parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck run`."""
    _add_program(parser.add_argument_group("program"))
    _add_recording(parser.add_argument_group("what is recorded"))
    _add_capture(parser.add_argument_group("what is kept"))
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
        metavar="FOLDER",
        help="write the loss scale, skipped steps, losses, gradient norms and worst underflow for TensorBoard",
    )
    while_running.add_argument(
        "--log",
        type=_loggers,
        default=[],
        metavar="WHERE",
        help="send the same values to the script's own wandb or mlflow run, or to prometheus:FILE",
    )
    output.add_arguments(parser)
    parser.set_defaults(fail_on="never")


def _loggers(text: str) -> list[Any]:
    from ampcheck.run.loggers import parsed

    try:
        return list(parsed(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        "--reference",
        choices=("few", "all"),
        default="few",
        help="compare few of the recorded steps with FP32, ever fewer over time (default), or all of them",
    )
    watch.add_argument(
        "--steps", dest="only", type=steps, metavar="N,N", help="record these steps, from 0 on, and no others"
    )
    watch.add_argument(
        "--slowest",
        type=count,
        default=20,
        metavar="N",
        help="abandon a recorded step that takes more than N times as long as one that is not recorded (default: 20)",
    )
    watch.add_argument(
        "--as-cuda",
        action=argparse.BooleanOptionalAction,
        help="let the CPU stand in for CUDA (default: if the script asks for CUDA and there is none)",
    )
    add_what_if(watch)


def _add_capture(group: Any) -> None:
    group.add_argument(
        "--save-batch",
        type=Path,
        metavar="FILE",
        help="keep a step's batch, weights and gradients in FILE.safetensors, for ampcheck --from FILE",
    )


def run(options: argparse.Namespace) -> int:
    """Run a script, watched, and publish the report; the exit status is the script's."""
    program = _program(options)
    # A script may change to another folder; a job that was started again keeps the reports of before.
    options.output = [writing.numbered(writing.absolute(output)) for output in options.output]
    watched = Watched(options, program)
    stop = after_import("torch", watched.begin)
    error: BaseException | None = None
    status = 0
    try:
        ended = launch(program)
        error, status = ended.error, ended.status
    finally:
        stop()
        with _speaking():
            watched.end(error)
    with _speaking():
        published = watched.published(error, status)
    return status or published


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """Have a standard error to write to, also where a script has closed or removed its own."""
    if sys.stderr is not None and not getattr(sys.stderr, "closed", False):
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


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
