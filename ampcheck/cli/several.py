"""Reports that follow a script: one for each model that it called."""

import argparse
import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli import output
from ampcheck.errors import AmpcheckError
from ampcheck.values.recipes import is_recipe, recipes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampcheck.run.recipe_calls import TrainingCalls
    from ampcheck.targets.spec import Target
    from ampcheck.values.settings import Settings


def tried(text: str) -> str:
    """Return what --what-if asks for: fp16, bf16, or a recipe."""
    if is_recipe(text):
        try:
            recipes(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    elif text not in {"", "fp16", "bf16"}:
        raise argparse.ArgumentTypeError(f"expected fp16, bf16, fp8 or fp8:RECIPE, got {text!r}")
    return text


def add_what_if(group: argparse._ArgumentGroup) -> None:
    """Add the option that tries another precision on a script."""
    group.add_argument(
        "--what-if",
        type=tried,
        default="",
        metavar="PRECISION",
        help="fp16, bf16: audit a script that trains in FP32 as if mixed precision were added to it; fp8:RECIPE: try "
        "a recipe on the models that it trains, when it has ended",
    )


def say_known_before(model: object, precision: str) -> None:
    """Print what is sure of a model and the recipes asked for, before anything of it runs."""
    if not is_recipe(precision):
        return
    from ampcheck.observe.fp8.fit import known_before

    for text in known_before(model, recipes(precision)):
        print(f"ampcheck: {text}", file=sys.stderr)


def publish_each(
    targets: "Iterable[tuple[Target, Settings]]",
    options: argparse.Namespace,
    notes: tuple[str, ...] = (),
    *,
    first: int = 0,
) -> int | None:
    """Audit targets and publish a report each, the files numbered from the first on; None where there are none."""
    from ampcheck.run.audit import audit

    status: int | None = None
    for number, (target, settings) in enumerate(targets, first):
        with contextlib.redirect_stdout(sys.stderr):
            say_known_before(target.model, settings.precision)
            report = audit(replace(target, notes=(*notes, *target.notes)), settings)
            outputs = [replace(one, path=_numbered(one.path, number)) for one in options.output]
            asked = argparse.Namespace(**{**vars(options), "output": outputs})
            status = max(status or 0, output.publish(report, asked))
    return status


def publish_recipes(
    calls: "TrainingCalls", shown: str, options: argparse.Namespace, notes: tuple[str, ...] = ()
) -> int:
    """Try recipes on the models that a script has trained; a report each, behind the script's own."""
    try:
        with calls.targets(shown) as targets:
            status = publish_each(targets, options, notes, first=1)
    except AmpcheckError as problem:
        output.complain(problem)
        return 0
    if status is None and calls.recipe:
        print(f"ampcheck: {calls.recipe} was not tried: {calls.missing}", file=sys.stderr)
    return status or 0


def _numbered(path: str, number: int) -> str:
    """Return the file of one of several reports: out.json, out-2.json."""
    if not number or path == "-":
        return path
    file = Path(path)
    return str(file.with_name(f"{file.stem}-{number + 1}{file.suffix}"))
