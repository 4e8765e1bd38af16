"""Audits a training script: its first steps, run as the GPU it is written for; its files stay off the disk."""

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ampcheck.cli import output
from ampcheck.cli.several import add_what_if, publish_recipes
from ampcheck.errors import ConfigError, TargetError
from ampcheck.run.child_processes import WatchOptions
from ampcheck.run.launch_script import Ended, Program, launch
from ampcheck.run.script_audit import ScriptAudit
from ampcheck.run.side_effects import Kept, kept
from ampcheck.targets.alone import models_alone
from ampcheck.targets.arguments import Argument, Reads, arguments_of, divided
from ampcheck.targets.reading import as_module, read, read_source
from ampcheck.targets.torchrun import as_one_rank
from ampcheck.targets.userfile import explained
from ampcheck.values.findings import Severity
from ampcheck.values.recipes import is_recipe
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule

STEPS, SECONDS = 20, 60.0
#: Options that are about a model: with one of them a file is audited as one.
MODEL_OPTIONS = frozenset({"--input", "--batch-size", "--weights", "--dry", "--small", "--from"})
#: Options that are ampcheck's, also after a script whose own options cannot be read.
ABOUT_THE_REPORT = frozenset(
    "-o --output --format --color --fail-on --select --ignore --baseline --update-baseline --reason --traceback "
    "--steps --seconds --as-cpu --what-if".split()
)
#: Options of an audit that a script has no use for: it chooses for itself.
CHOSEN_BY_SCRIPT = ("precision", "scale", "verify_steps", "layers_only", "sample", "save_plan", "save_patch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that only the audit of a script has."""
    script = parser.add_argument_group(
        "script", "a file that trains is run as it is, up to --steps; its own arguments follow it"
    )
    script.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"stop the script after so many (default: {SECONDS:g})",
    )
    script.add_argument(
        "--as-cpu",
        action="store_true",
        help="run the script as on a machine without a GPU (default: a CPU stands in for the GPU it is written for)",
    )
    add_what_if(script)


def script_words(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]] | None:
    """Divide a command line into ampcheck's words and those of the script in it; None where it names no script."""
    at = _place_of_script(words)
    if at is None or not MODEL_OPTIONS.isdisjoint(word.partition("=")[0] for word in words):
        return None
    path = Path(words[at]).resolve()
    if not read(path).script:
        return None
    arguments = arguments_of(path)
    ours, theirs = divided(words[at + 1 :], arguments, _taken_by(parser, arguments.reads))
    return [*words[: at + 1], *ours], theirs


def run_words(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the words of `ampcheck run` with what only ampcheck knows before the script: `run train.py -o r.html`.

    That is said; what nobody can tell from the script's text stays the script's.
    """
    at = _place_of_script(words)
    if at is None or not {"-m", "-c", "--"}.isdisjoint(words[:at]):
        return list(words)
    arguments = arguments_of(Path(words[at]).resolve())
    if arguments.reads is Reads.UNKNOWN:
        return list(words)
    ours, theirs = divided(words[at + 1 :], arguments, _taken_by(parser, Reads.UNKNOWN))
    if not ours:
        return list(words)
    shown = shlex.join(ours)
    print(
        f"ampcheck: {shown} is read as an option of ampcheck: {words[at]} has no such option", file=sys.stderr
    )
    return [*words[:at], *ours, words[at], *theirs]


def _place_of_script(words: Sequence[str]) -> int | None:
    """Return which of the words is the first that names a Python file."""
    files = (n for n, word in enumerate(words) if word.endswith((".py", ".ipynb")) and Path(word).is_file())
    return next(files, None)


def _taken_by(parser: argparse.ArgumentParser, reads: Reads) -> Any:
    """Return what tells how many words an option of a command takes, 0 for one that it does not have."""
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", parser.format_help()))
    if reads is Reads.UNKNOWN:  # what it takes, nobody can see: it keeps what is not plainly about a report
        known &= ABOUT_THE_REPORT

    def taken(word: str, follows: str) -> int:
        name = word.partition("=")[0]
        if name not in known:
            return 0
        if "=" in word or not follows or (follows.startswith("-") and follows != "-"):
            return 1
        _, left = parser.parse_known_args([name, follows, "TARGET"])
        return 1 if follows in left else 2

    return taken


def run(options: argparse.Namespace) -> int:
    """Audit a script and publish the report."""
    path = Path(options.target).resolve()
    program = _program(path, options)
    _refuse(options)
    missing = arguments_of(path).missing(program.arguments)
    if missing:
        raise _incomplete(missing, options, program)
    steps = options.steps if "steps" in options.given else STEPS
    recipe = options.what_if if is_recipe(options.what_if) else ""
    audit = ScriptAudit(_watch_options(options, program, steps), (steps, options.seconds), recipe)
    if program.kind == "module":
        print(f"ampcheck: its imports are relative: run as python {program.shown}", file=sys.stderr)
    print(f"ampcheck: {_what_runs(options, steps)}", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr), kept() as written, as_one_rank(path) as rank:
        if rank:
            print("ampcheck: it expects torchrun: run as torchrun --nproc-per-node 1 runs it")
        ended = audit.over(lambda: launch(program))
    return _publish(options, audit, ended, written, program)


def _incomplete(missing: Sequence[Argument], options: argparse.Namespace, program: Program) -> TargetError:
    """Return the error of a script that needs arguments: the command with them, where there is something to give."""
    path = Path(options.target).resolve()
    given = [(argument, *argument.example(path.parent)) for argument in missing]
    words = [word for _, example, _ in given for word in example]
    names = ", ".join(max(argument.flags, key=len) for argument, _, _ in given)
    command = shlex.join(["ampcheck", options.target, *program.arguments, *words])
    alone = [] if all(real for _, _, real in given) else models_alone(path)
    if not alone:
        message = f"the script needs {names}; give it what it needs:"
        return TargetError(message, where=options.target, hint=command)
    message = f"the script needs {names}: {command}; its model alone, without them:"
    hint = "\n".join(f"ampcheck {target}" for target in alone)
    return TargetError(message, where=options.target, hint=hint)


def _program(path: Path, options: argparse.Namespace) -> Program:
    """Return the script, as a module of its package where its imports are relative."""
    words, module = tuple(options.script_words), as_module(path)
    if module is None:
        return Program("script", options.target, words)
    return Program("module", module[1], words, str(module[0]))


def _watch_options(options: argparse.Namespace, program: Program, steps: int) -> WatchOptions:
    schedule = Schedule(first=steps, every=0, beside="all")
    as_cuda = not (options.as_cpu or _has_gpu())
    bounds = steps, options.seconds
    what_if = "" if is_recipe(options.what_if) else options.what_if
    return WatchOptions(program.shown, schedule, as_cuda, as_cuda, what_if, bounds)


def _has_gpu() -> bool:
    """Tell whether there is a GPU, without loading torch: the script is to do that."""
    return any(Path(place).exists() for place in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")) or os.name == "nt"


def _what_runs(options: argparse.Namespace, steps: int) -> str:
    cuda = "on the GPU" if _has_gpu() else "on a CPU that stands in for CUDA"
    where = "as on a CPU" if options.as_cpu else cuda
    return (
        f"{options.target} is a training script: {steps} steps of it are run, {where}, {options.seconds:g} s at most; "
        "what it writes goes to a temporary folder"
    )


def _refuse(options: argparse.Namespace) -> None:
    given = [name for name in CHOSEN_BY_SCRIPT if name in options.given]
    if given:
        name = "--" + given[0].replace("_", "-")
        raise ConfigError(
            f"{name} is for a model: a script chooses by itself; audit it as it is, or a model of the file",
            hint=f"ampcheck {options.target}\nampcheck {options.target}:{_some_class(options.target)} {name} …",
        )


def _some_class(target: str) -> str:
    source = read_source(Path(target).resolve())
    return next(iter(source.classes), "Net") if source else "Net"


def _stopped(report: Report, after: str) -> Report:
    """Return the report of a script that was stopped: it says that what came later was not seen."""
    later = f"what the script does after {after}, where ampcheck stopped it; ampcheck run watches all of it"
    low = replace(report.low, not_audited={**report.low.not_audited, later: 1})
    return replace(report, low=low, notes=(f"the script was stopped after {after}", *report.notes))


def _publish(
    options: argparse.Namespace, audit: ScriptAudit, ended: Ended, written: Kept, program: Program
) -> int:
    report = audit.report(written.words)
    steps = report.loop.steps if report is not None and report.loop is not None else 0
    # What ended the script may be what is wrong with its loop: that is the answer.
    refused = report is not None and (report.low.failure is not None or report.worst is Severity.ERROR)
    if ended.error is not None and not steps and not refused:
        raise _ended_early(ended.error, options, program)
    if report is None or not (steps or refused):
        raise TargetError(_untrained(ended), where=options.target, hint=f"ampcheck run {options.target}")
    if audit.stopped:
        report = _stopped(report, audit.stopped)
    status = output.publish(report, options)
    if audit.calls is None:
        return status
    return max(status, publish_recipes(audit.calls, options.target, options))


def _ended_early(error: BaseException, options: argparse.Namespace, program: Program) -> TargetError:
    """Return the error of a script that came to no step: its models can be audited alone."""
    why = explained(error).removeprefix(type(error).__name__).removeprefix(": ")
    shown = f" ({why})" if why else ""
    kind = type(error).__name__
    message = f"the script ended with {kind} before its first step{shown}, so nothing was seen"
    python = shlex.join(["python", *["-m"][: program.kind == "module"], program.name, *program.arguments])
    alone = [] if isinstance(error, ImportError) else models_alone(Path(options.target).resolve())
    if alone:
        message += "; it fails by itself, or its model is audited without the rest:"
    hint = "\n".join([python, *(f"ampcheck {target}" for target in alone)])
    return TargetError(message, where=options.target, hint=hint)


def _untrained(ended: Ended) -> str:
    status = f" with status {ended.status}" if ended.status else ""
    return f"the script ended{status} and took no training step, so nothing was seen"
