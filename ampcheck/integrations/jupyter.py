"""For notebooks: `%load_ext ampcheck`, then `%%ampcheck` above a cell that trains shows the page below it."""

import argparse
import shlex
from typing import Any

import torch

import ampcheck.renderers.saving  # noqa: F401  # a report can then be shown and saved
from ampcheck.run.watch_loop import PRECISIONS, watch
from ampcheck.values.report import Report


def load(shell: Any) -> None:
    """Give a shell of IPython the magic of a cell."""
    shell.register_magic_function(lambda line, cell: audited(shell, line, cell), "cell", "ampcheck")


def audited(shell: Any, line: str, cell: str) -> Report | None:
    """Run a cell under the watch, and return the report, which a notebook shows as the page."""
    options = _options(line)
    if options is None:
        return None
    made = list(shell.user_ns.values())
    optimizers = [held for held in made if isinstance(held, torch.optim.Optimizer)]
    scalers = [held for held in made if isinstance(held, torch.amp.GradScaler)]
    as_cuda = not torch.cuda.is_available()
    with watch(
        None, optimizers, scalers, every=options.every, what_if=options.what_if, as_cuda=as_cuda
    ) as watching:
        done = shell.run_cell(cell)
    if not watching.steps:
        print("ampcheck: no training step was seen in this cell")  # noqa: T201  # the notebook's output
        return None
    if getattr(done, "error_in_exec", None) is not None:
        watching.note(
            f"the cell ended with {type(done.error_in_exec).__name__}: the report covers what ran before"
        )
    report = watching.report()
    if options.output:
        report.save(options.output)
    return report


def _options(line: str) -> argparse.Namespace | None:
    """Return the options behind `%%ampcheck`; what is wrong with them is printed, and the notebook goes on."""
    parser = argparse.ArgumentParser(prog="%%ampcheck", description="Audit the training in this cell.")
    parser.add_argument(
        "--what-if", choices=PRECISIONS, default="", help="as if it trained in this precision"
    )
    parser.add_argument(
        "--every", type=int, default=50, metavar="N", help="record one step in N (default: 50)"
    )
    parser.add_argument("-o", dest="output", default="", metavar="FILE", help="write the report to FILE too")
    try:
        return parser.parse_args(shlex.split(line))
    except SystemExit:
        return None
