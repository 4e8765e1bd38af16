"""Audit a model: run its steps in FP32 and in low precision, and report what is lost.

A target is a file (model.py, model.py:name), a module (package.module:name), or an architecture with random
weights (torchvision:NAME, timm:NAME, transformers:TYPE). A file defines model, batch and loss(model, batch).
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli import audit_script, output
from ampcheck.cli.several import say_known_before
from ampcheck.saved.report_json import write
from ampcheck.values.report import Report
from ampcheck.values.settings import CASTS, MODES, parse_precision, parse_scale

if TYPE_CHECKING:
    from ampcheck.targets import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck check`."""
    add_audit_arguments(parser)
    parser.add_argument(
        "--save-plan", type=Path, metavar="FILE", help="write the plan, for ampcheck.Plan.load(FILE)"
    )
    parser.add_argument(
        "--save-patch", type=Path, metavar="FILE", help="write the plan as a diff, or as lines to paste"
    )
    audit_script.add_arguments(parser)
    output.add_arguments(parser)


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that audits a target."""
    parser.add_argument(
        "target",
        nargs="?",  # a capture says what it is of
        metavar="TARGET",
        help="model.py, model.py:name, package.module:name, torchvision:NAME, timm:NAME, transformers:TYPE",
    )
    _add_step_arguments(parser.add_argument_group("audit"))
    parser.add_argument("--traceback", action="store_true", help="show the whole traceback of an error")
    add_target_arguments(parser)


def _add_step_arguments(audit: "argparse._ActionsContainer") -> None:
    """Add the options that say what is run, how often, and how much of it is measured."""
    audit.add_argument(
        "--precision", type=precision, metavar="P", help="fp16 (default), bf16, auto, fp8[:RECIPE]"
    )
    add_mode_arguments(audit)
    audit.add_argument(
        "--scale",
        type=scale,
        metavar="S",
        help="loss scale, a power of two such as 1024 or 2^10 (default: as GradScaler settles)",
    )
    audit.add_argument(
        "--steps", type=count, default=None, metavar="N", help="training steps to audit (default: 1)"
    )
    audit.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="run the step again to verify each claim (--no-verify: record only, no plan)",
    )
    audit.add_argument(
        "--verify-steps",
        type=count,
        metavar="N",
        help="also train N steps with the plan and in FP32, and compare",
    )
    audit.add_argument(
        "--budget", type=seconds, metavar="S", help="seconds to search for a remedy (default: 60)"
    )
    audit.add_argument(
        "--layers-only",
        action="store_true",
        default=None,
        help="measure only what enters and leaves modules, not the operations inside: faster, but finds less",
    )
    audit.add_argument(
        "--sample",
        type=count,
        metavar="N",
        help="read N elements of a tensor that has more; the report says how far off that may be (default: all)",
    )
    audit.add_argument(
        "--dry",
        action="store_true",
        help="run without values or memory, on the CPU, for dtypes and casts alone: models of any size",
    )


def add_mode_arguments(audit: "argparse._ActionsContainer") -> None:
    """Add the options that say what is run, and what is cast."""
    audit.add_argument(
        "--mode",
        choices=MODES,
        help="train: forward, loss and backward; infer: the forward alone (default: as the target shows)",
    )
    audit.add_argument(
        "--cast",
        choices=CASTS,
        help="autocast, or weights: the model itself is cast, as .to(dtype) does (default: as the target shows)",
    )
    audit.add_argument(
        "--keep",
        type=output.names,
        action="extend",
        metavar="NAMES",
        help="modules that stay in FP32 when the model is cast, such as rotary_emb,layers.3.norm",
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a target is built."""
    target = parser.add_argument_group("target")
    target.add_argument("--batch-size", type=count, metavar="N", help="samples in a batch")
    target.add_argument("--input", metavar="SHAPE", help="shape of the input, such as 8x3x64x64 or 3,64,64")
    target.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="load weights (safetensors, or a torch file without code)",
    )
    target.add_argument(
        "--from",
        dest="captured",
        type=Path,
        metavar="FILE",
        help="audit the batch, weights and gradients that ampcheck.capture or run --save-batch kept",
    )
    target.add_argument(
        "--device", metavar="D", help="where to run (default: cuda where there is one, else cpu)"
    )
    target.add_argument(
        "--small", action="store_true", help="shrink the configuration of a transformers model"
    )
    target.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed for random weights and batches (default: 0)"
    )


#: Exit status where FP32 itself comes to no finite loss.
NOT_JUDGED = 2


def run(options: argparse.Namespace) -> int:
    """Audit a target and publish the report; a file that trains is audited as the script it is."""
    if options.script_words is not None:
        return audit_script.run(options)
    report = audited(options)
    if options.save_plan is not None and report.plan is not None:
        write(options.save_plan, report.plan.to_json())
    if options.save_patch is not None and report.patch:
        write(options.save_patch, report.patch)
    status = output.publish(report, options)
    return status if report.judgeable else NOT_JUDGED


def audited(options: argparse.Namespace) -> Report:
    """Return the report of the target that was asked for."""
    from ampcheck.targets import load
    from ampcheck.targets.spec import parse_spec

    # On a machine that is shared, threads that spin while they wait for each other cost minutes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parse_spec(options.target)  # what names nothing is refused before torch is loaded

    say = output.progress()
    # What the user's code prints must not get into a report on standard output.
    with contextlib.redirect_stdout(sys.stderr):
        say(f"loading {options.target}")
        wanted = options_of(options)
        try:
            if options.dry:
                from ampcheck.run.dry import dry_audit

                return dry_audit(options.target, wanted, options.config.settings, say)
            settings = options.config.settings
            target = load(options.target, replace(wanted, infer=settings.mode == "infer"))
            from ampcheck.run.audit import audit
            from ampcheck.targets.seeding import seeded

            say_known_before(target.model, settings.precision)
            with seeded(options.seed):  # dropout too is to be the same in every run of the command
                report = audit(target, settings, say)
                from ampcheck.bench.running.bought import with_bought

                return with_bought(report, target)
        finally:
            say("")


def options_of(options: argparse.Namespace) -> "Options":
    """Return how a target is to be built."""
    from ampcheck.targets import Options, parse_shape

    shape = parse_shape(options.input) if options.input else None
    return Options(
        options.batch_size,
        shape,
        options.weights,
        options.device or _device(),
        options.small,
        options.seed,
        captured=options.captured,
    )


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def precision(text: str) -> str:
    """Return a precision that there is."""
    try:
        return parse_precision(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def scale(text: str) -> int | None:
    """Return log2 of a loss scale written as 1024, 2^10 or 2**10; None for auto."""
    try:
        return parse_scale(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a power of two such as 1024 or 2^10, got {text!r}"
        ) from None


def number(what: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return what reads a number of a kind."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
        return value

    return parse


seconds = number("a number of seconds", lambda value: 0 <= value < inf)


def count(text: str) -> int:
    """Return a number of at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)
