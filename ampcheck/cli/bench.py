"""Measure what each precision buys here and what it costs: time, memory and accuracy, a row for each.

A target is what `ampcheck check` takes; its file may also define metric(model, batch) and validation, a list of
batches. Reports are written into a folder as Markdown, HTML, CSV and JSON. On a CPU the times are the CPU's own;
memory is predicted for CUDA, and accuracy follows CUDA's casting rules.
"""

import argparse
import contextlib
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.bench import files, saved
from ampcheck.bench.compare import Change, check, compare
from ampcheck.bench.gates import Gates, broken
from ampcheck.bench.harness import enter, refuse
from ampcheck.bench.markdown import VIEWS, aligned, to_text
from ampcheck.bench.request import PARTS, Request
from ampcheck.bench.result import PRECISIONS, Bench
from ampcheck.bench.roofline import gpus
from ampcheck.cli import bench_sweep, output
from ampcheck.cli.check import add_target_arguments, count, number, options_of, seconds
from ampcheck.errors import AmpcheckError
from ampcheck.saved.report_json import write
from ampcheck.values.plan import Plan

if TYPE_CHECKING:
    from ampcheck.targets.spec import Target

_INTERRUPTED = 130
#: Set by torchrun for its processes.
UNDER_TORCHRUN = {"TORCHELASTIC_RUN_ID"}
_DEFAULT = ("fp32", "tf32", "fp16", "amp", "bf16")
_FRESH = "fresh"
#: Columns below which the table would not fit, whatever the terminal says.
_NARROWEST = 80
_above_zero = number("a number above zero", lambda value: 0 < value < math.inf)
_share = number("zero or a number above it", lambda value: 0 <= value < math.inf)
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck bench`."""
    parser.add_argument("target", nargs="?", metavar="TARGET", help="as for ampcheck check")
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--precisions",
        type=bench_sweep.names(PRECISIONS),
        default=_DEFAULT,
        metavar="P,P",
        help=f"of {', '.join(PRECISIONS)}",
    )
    what.add_argument(
        "--parts", type=bench_sweep.names(PARTS), default=PARTS, metavar="P,P", help=f"of {', '.join(PARTS)}"
    )
    what.add_argument("--plan", metavar="FILE", help="a saved plan as one more row, or 'fresh': audit first")
    what.add_argument(
        "--steps", type=count, default=30, metavar="N", help="of each training run (default: 30)"
    )
    what.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="training runs each (default: 5, at least 3 where they take long)",
    )
    what.add_argument(
        "--margin",
        type=_above_zero,
        default=0.02,
        metavar="M",
        help="share of FP32's result within which training is equivalent (default: 0.02)",
    )
    what.add_argument(
        "--budget", type=seconds, default=20.0, metavar="S", help="seconds to time a case (default: 20)"
    )
    what.add_argument(
        "--clip", type=_above_zero, metavar="NORM", help="clip gradients to this norm, after unscaling"
    )
    what.add_argument(
        "--fits", type=_bytes, dest="room", metavar="SIZE", help="the largest batch that fits, such as 16GiB"
    )
    what.add_argument(
        "--gpu",
        dest="gpus",
        type=_gpus,
        default=(),
        metavar="NAME,NAME",
        help="predict times on GPUs that are not here, such as a100-80g,h100 (needs the part memory)",
    )
    what.add_argument(
        "--epoch", type=count, metavar="N", help="samples of an epoch, to say how long it takes"
    )
    what.add_argument(
        "--price", type=_above_zero, metavar="P", help="of an hour of the GPU, to say what an epoch costs"
    )
    bench_sweep.add_arguments(parser)
    _add_output(parser)
    add_target_arguments(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        default="reports",
        metavar="DIR",
        help="folder of the reports (default: reports; -: none)",
    )
    group.add_argument("--name", help="of the report's files (default: from the target)")
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on with the partial results of the same bench, or add parts to its report",
    )
    group.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="say what changed since; exit with 1 if anything got worse or is missing",
    )
    group.add_argument(
        "--index", type=Path, metavar="DIR", help="write DIR/README.md, an index of its reports"
    )
    group.add_argument("--min-speedup", type=_above_zero, metavar="X", help="gate: exit with 1 below")
    group.add_argument("--max-memory", type=_above_zero, metavar="X", help="gate: of FP32's peak")
    group.add_argument(
        "--max-loss", type=_share, metavar="X", help="gate: share by which training may be worse"
    )
    for name in ("json", "save", "compare", "storage", "histogram"):
        group.add_argument(
            f"--benchmark-{name}", metavar="X", help="handed to pytest-benchmark with the samples"
        )
    group.add_argument(
        "--view",
        choices=VIEWS,
        default="sweep",
        help="show a sweep as one table (default), a table for each case, or the table that articles print",
    )
    group.add_argument("--traceback", action="store_true", help="show the whole traceback of an error")


def run(options: argparse.Namespace) -> int:
    """Bench a target, or write an index."""
    if options.target is None:
        if options.index is None:
            raise AmpcheckError("expected a target to bench, or --index DIR; got neither")
        print(files.write_index(options.index))
        return 0
    handed = _handed(options)
    if handed:
        refuse(options.parts, histogram=options.benchmark_histogram is not None)
    if not UNDER_TORCHRUN & {*os.environ}:
        return _run(options, handed)
    from ampcheck.bench.running.ranks import RESULT, joined

    with joined() as reports:
        if RESULT in os.environ:
            return _rank(options, Path(os.environ[RESULT]), reports=reports)
        return _run(options, handed) if reports else _rank(options, None, reports=False)


def _rank(options: argparse.Namespace, result: Path | None, *, reports: bool) -> int:
    """Measure as one of several ranks; the one that reports leaves its result for who launched it."""
    bench = _measured(options)
    if reports and result is not None:
        write(result, saved.to_json(bench))
    return 0


def _run(options: argparse.Namespace, handed: list[str]) -> int:
    """Measure, print, write the reports, and hold the gates."""
    old = saved.read(options.compare) if options.compare else None
    if old is not None:
        check(old, options.target)
    bench = _measured(options)
    changes = compare(old, bench) if old else ()
    columns = max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns)
    sys.stdout.write(to_text(bench, columns, options.view))
    if changes:
        rows = [("since before", "before", "now", ""), *(change.cells for change in changes)]
        print("\n".join(aligned(rows)))
    if bench.interrupted:
        return _interrupted(options, bench)
    _write(options, bench, changes)
    gates = Gates(options.min_speedup, options.max_memory, options.max_loss)
    found = [*broken(gates, bench), *(text for change in changes if (text := change.failed))]
    for text in found:
        print(f"gate: {text}")
    if handed:
        enter(bench, handed)
    return int(bool(found))


def _handed(options: argparse.Namespace) -> list[str]:
    """Return the options that are pytest-benchmark's own."""
    return [
        f"--benchmark-{name}={value}"
        for name in ("json", "save", "compare", "storage", "histogram")
        if (value := getattr(options, f"benchmark_{name}")) is not None
    ]


def _interrupted(options: argparse.Namespace, bench: Bench) -> int:
    """Say where the results lie that there were until Ctrl-C."""
    if options.output != "-":
        part = files.partial(Path(options.output), options.name or files.report_name(bench.target))
        print(f"interrupted; go on with --resume ({part})", file=sys.stderr)
    return _INTERRUPTED


def _write(options: argparse.Namespace, bench: Bench, changes: Sequence[Change]) -> None:
    """Write the reports, and the index where one is asked for."""
    if options.output != "-":
        folder, name = Path(options.output), options.name or files.report_name(bench.target)
        for path in files.write_all(folder, name, bench, changes):
            print(path)
        files.partial(folder, name).unlink(missing_ok=True)
    if options.index is not None:
        files.write_index(options.index)


def _measured(options: argparse.Namespace) -> Bench:
    """Return the bench, run in the foreground, with what it had already where it is resumed."""
    from ampcheck.targets import load
    from ampcheck.targets.spec import parse_spec

    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parse_spec(options.target)  # what names nothing is refused before torch is loaded
    say = output.progress(lines=True)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            say(f"loading {options.target}")
            wanted = options_of(options)

            def make(size: int | None, seed: int) -> "Target":
                return load(options.target, replace(wanted, batch_size=size or wanted.batch_size, seed=seed))

            from ampcheck.bench.running.bench import Bencher

            request = _request(options, make)
            folder, name = Path(options.output), options.name or files.report_name(options.target)
            part = files.partial(folder, name)
            empty = Bench(
                options.target,
                command=shlex.join(["ampcheck", *(word for word in options.words if word != "--resume")]),
                margin=options.margin,
                epoch=options.epoch,
                price=options.price,
                fingerprint=request.fingerprint(options.target, wanted),
            )
            bench = files.resumed(folder, name, empty) if options.resume else empty

            def keep(state: Bench) -> None:
                if options.output != "-":
                    folder.mkdir(parents=True, exist_ok=True)
                    write(part, saved.to_json(state))

            launch = partial(bench_sweep.launched, options.words)
            return Bencher(make, request, say, keep, options.seed, launch).run(bench)
        finally:
            say("")


def _request(options: argparse.Namespace, make: Callable[[int | None, int], "Target"]) -> Request:
    plan = None
    if options.plan == _FRESH:
        from ampcheck.run.audit import audit
        from ampcheck.values.settings import Settings

        plan = audit(make(None, options.seed), Settings()).plan
    elif options.plan:
        plan = Plan.load(options.plan)
    asked = {field.name: getattr(options, field.name) for field in fields(Request)}
    return Request(**asked | {"plan": plan})


def _gpus(text: str) -> tuple[str, ...]:
    return bench_sweep.names(gpus())(text)


def _bytes(text: str) -> int:
    for unit, factor in _UNITS.items():
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.replace(".", "", 1).isdecimal():
            return int(float(number) * factor)
    raise argparse.ArgumentTypeError(f"expected a size such as 16GiB or 800MB, got {text!r}")
