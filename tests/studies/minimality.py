"""Is the FP32 set that ampcheck finds as small as the smallest there is?

    python tests/studies/minimality.py --report reports/minimality.md

Each case is small enough to try every set of places, smallest first, twice: through ampcheck's own re-runs, and
by a plain loop that shares nothing with them but the casting kernels.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from judge import opinion
from lines import lines_wide
from minimal_parts import (
    WIDTH,
    Block,
    Blocks,
    Both,
    Centred,
    Counted,
    Energy,
    Gated,
    Guarded,
    LineThenModule,
    Loud,
    Mixed,
    OwnLine,
    Quiet,
    Stage,
    TwoLines,
    chain,
    loud_loss,
    squared,
)  # fmt: skip

from ampcheck.diagnose.suspects import Suspect
from ampcheck.fix.verify import Lab
from ampcheck.observe.step import Step
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

#: The scale at which sets are tried in fp16, as in the search: far from both ends.
LOG2_SCALE = {"fp16": 8, "bf16": 0}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
HARM = 0.15
ROWS = 32


@dataclass(frozen=True)
class Case:
    """A step with culprits that are known by construction."""

    name: str
    what: str
    build: Callable[[], torch.nn.Module]
    needs: int  #: places, by construction
    loss: Callable[[Any, Any], torch.Tensor] = squared
    precision: str = "fp16"

    def step(self) -> tuple[Any, Any, Callable[[Any, Any], torch.Tensor]]:
        """Return model, batch and loss, the same each time."""
        torch.manual_seed(1)
        model = self.build()
        return model, (torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)), self.loss


CASES = (
    Case("one module", "an overflow among five layers", lambda: chain(Energy(), torch.nn.ReLU()), 1),
    Case("one module, rounding", "a cancellation", lambda: chain(torch.nn.ReLU(), Centred()), 1),
    Case("one module, bf16", "positions", lambda: chain(Counted(), torch.nn.ReLU()), 1, precision="bf16"),
    Case("two in a chain", "an overflow, then a log of zero", lambda: chain(Energy(), Guarded()), 2),
    Case("two side by side", "two cancellations", lambda: Both(Centred(), Centred()), 2),
    Case(
        "three in a chain",
        "overflow, cancellation, log of zero",
        lambda: chain(Energy(), Centred(), Guarded()),
        3,
    ),
    Case("nested", "in a block of a list", lambda: Blocks(Block(), Block(Energy()), Block()), 1),
    Case(
        "two nested", "in two blocks of a list", lambda: Blocks(Block(Energy()), Block(), Block(Guarded())), 2
    ),
    Case(
        "two in one container",
        "a Sequential holds both",
        lambda: Both(chain(Energy(), Guarded()), torch.nn.ReLU()),
        1,
    ),
    Case("ancestor", "what one child makes another casts", lambda: chain(Stage(), torch.nn.ReLU()), 1),
    Case("own operation", "a product in the forward of a parent", lambda: chain(torch.nn.ReLU(), Gated()), 1),
    Case("pair without ancestor", "as before, both in the root", lambda: chain(Loud()).append(Quiet()), 3),
    Case("line of the root", "a square in the root's forward", OwnLine, 1),
    Case("line and module", "a line makes what a module casts", LineThenModule, 2),
    Case("two lines", "a line makes what another casts", TwoLines, 2),
    Case("line of the loss", "a square in the loss", lambda: chain(torch.nn.ReLU()), 1, loud_loss),
    Case("module and line", "an overflow, and a cancellation in the root", Mixed, 2),
    Case("ancestor and module", "a container and an overflow elsewhere", lambda: chain(Stage(), Energy()), 2),
)


@dataclass(frozen=True)
class Result:
    """A case, what ampcheck found and what is the smallest."""

    case: Case
    found: tuple[str, ...]
    heals: bool  #: what ampcheck found, says the plain loop
    places: int
    by_lab: tuple[str, ...] | None  #: the first of the smallest healing sets; None where there is none
    by_loop: tuple[str, ...] | None
    trials: int

    @property
    def small(self) -> bool:
        """Tell whether no smaller set heals, whoever judges."""
        known = [best for best in (self.by_lab, self.by_loop) if best is not None]
        return self.heals and bool(known) and len(self.found) <= min(map(len, known))


def study(case: Case) -> Result:
    """Audit a case and try all sets, smallest first, until one heals."""
    model, batch, loss = case.step()
    report = audit(Target(case.name, model, [batch], loss), Settings(case.precision))
    places = places_of(model, report)
    lab = Lab(Step(model, batch, loss))

    def heals_in_lab(chosen: tuple[Suspect, ...]) -> bool:
        modules, lines = split(chosen)
        return not lab.trial(DTYPES[case.precision], LOG2_SCALE[case.precision], modules, lines).harmed

    by_lab = smallest(places, heals_in_lab)
    by_loop = smallest(places, lambda chosen: heals_in_loop(case, chosen))
    plan = report.plan
    found = () if plan is None else tuple(Suspect(module=name) for name in plan.fp32_modules)
    found += () if plan is None else tuple(Suspect(line=line) for line in plan.fp32_lines)
    return Result(case, names(found), heals_in_loop(case, found), len(places), by_lab, by_loop, lab.trials)


def places_of(model: torch.nn.Module, report: Report) -> list[Suspect]:
    """Return all modules but the root, and the lines outside of modules that work in low precision."""
    sites = (site for site in report.low.sites if not site.module and site.op and site.dtype == report.dtype)
    lines = dict.fromkeys(site.location for site in sites if site.location)
    modules = (Suspect(module=name) for name, _ in model.named_modules() if name)
    return [*modules, *(Suspect(line=line) for line in lines)]


def smallest(places: list[Suspect], heals: Callable[[tuple[Suspect, ...]], bool]) -> tuple[str, ...] | None:
    """Return the names of the first of the smallest sets that heal."""
    for size in range(len(places) + 1):
        for chosen in combinations(places, size):
            if heals(chosen):
                return names(chosen)
    return None


def heals_in_loop(case: Case, chosen: tuple[Suspect, ...]) -> bool:
    """Tell whether a plain loop trains as FP32 with these places in FP32."""
    modules, lines = split(chosen)
    with lines_wide(lines):
        said = opinion(case.step, case.precision, LOG2_SCALE[case.precision], modules)
    return not said.harmed(HARM)


def split(chosen: tuple[Suspect, ...]) -> tuple[list[str], list[tuple[str, int]]]:
    """Return modules, and lines as file and number."""
    places = (one.line.rpartition(":") for one in chosen if one.line)
    return [one.module for one in chosen if one.module], [(file, int(line)) for file, _, line in places]


def names(chosen: tuple[Suspect, ...]) -> tuple[str, ...]:
    """Return how a person would call them, lines without their folder."""
    return tuple(one.module or one.line.rpartition("/")[2] for one in chosen)


_HEAD = """# Minimality: the FP32 set found, and the smallest there is

Made by `python tests/studies/minimality.py --report reports/minimality.md`.

Each case is a small model with culprits known by construction. ampcheck audits it and names the places to keep in
FP32; then every set of places, modules but the root and lines of functional code, is tried, smallest first, until
one heals (no non-finite number, loss and gradients within {harm:.0%} of FP32's): by ampcheck's own re-runs (*lab*),
and by a plain loop that shares nothing with them but the casting kernels (*loop*). *Built to need* is the size by
construction.

**In {small} of {cases} cases the set found is as small as the smallest**, and it heals in {heals} of {cases} in the
plain loop.

| case | culprits | places | built to need | found | smallest, lab | smallest, loop | as small | heals, loop |
|---|---|---:|---:|---|---|---|---|---|
"""


def page(results: list[Result]) -> str:
    """Return the page as Markdown."""
    head = _HEAD.format(
        harm=HARM,
        small=sum(result.small for result in results),
        cases=len(results),
        heals=sum(result.heals for result in results),
    )
    return head + "".join(_row(result) for result in results)


def _row(result: Result) -> str:
    sets = (result.found, result.by_lab, result.by_loop)
    shown = ["none" if chosen is None else f"{len(chosen)}: {', '.join(chosen)}" for chosen in sets]
    case = result.case
    cells = [f"{case.name} ({case.precision})", case.what, str(result.places), str(case.needs), *shown]
    return (
        f"| {' | '.join([*cells, *('yes' if yes else '**no**' for yes in (result.small, result.heals))])} |\n"
    )


def main() -> int:
    """Run the study; return 1 where fewer than nine in ten sets are as small as can be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names (default: all)")
    parser.add_argument("--report", type=Path, help="write the page here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = [study(case) for case in CASES if not options.cases or case.name in options.cases]
    text = page(results)
    print(text)
    if options.report is not None:
        options.report.write_text(text, encoding="utf-8")
    return int(10 * sum(result.small for result in results) < 9 * len(results))


if __name__ == "__main__":
    sys.exit(main())
