"""From evidence to a plan for inference: the fewest modules in FP32 that heal, each set tried by a re-run."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch

from ampcheck.diagnose.suspects import Suspect, suspects
from ampcheck.fix.search import Search
from ampcheck.inference.casting import Way
from ampcheck.inference.iterations import from_call_to_call
from ampcheck.inference.lab import ForwardLab
from ampcheck.inference.stored import Culprits, is_matrix, ruined
from ampcheck.inference.written import library_words, lines_to_paste
from ampcheck.observe.dtypes import DTYPES
from ampcheck.values.modules import above
from ampcheck.values.outcome import HEALS_FACTOR, Outcome, magnified
from ampcheck.values.plan import Claim, Plan, Tried
from ampcheck.values.report import Report
from ampcheck.values.settings import Progress
from ampcheck.values.wording import percent, plural, size

#: Places tried alone before sets are searched, and modules around the first of them.
SINGLES = 16
_AROUND = 8
#: Times the error of FP32 with rounded weights that may be left where stored numbers were proved to be the cause.
_LEFT = 1.5
_CASTS = ("weights", "autocast")
#: What the results of a module in FP32 become: cast back, or left to promote what follows.
BACK, PROMOTE = "cast-back", "promote"


@dataclass(slots=True)
class Kept:
    """A set of places in FP32 that was tried."""

    items: tuple[Suspect, ...] = ()
    promote: bool = False
    inputs: tuple[str, ...] = ()
    state: bool = False  #: what is carried from call to call, too


@dataclass(slots=True)
class Advisor:
    """Tries changes to a model's forwards and puts what heals into a plan."""

    report: Report
    lab: ForwardLab
    progress: Progress
    keep: tuple[str, ...] = ()
    _known: dict[Way, Outcome] = field(default_factory=dict)

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.report.precision]

    @property
    def _way(self) -> Way:
        return Way(self._dtype, self.report.cast == "weights", self.keep)

    def advise(self, budget: float) -> Report:
        """Return the report with how every way came out, a plan, and a verdict on each of its claims."""
        settled = self._trial(self._way)
        beside = (*_batch_by_batch(self.lab.by_batch), *from_call_to_call(settled.outputs))
        self.report = replace(self.report, notes=(*self.report.notes, *beside))
        rounded = self.lab.rounded(self._dtype, is_matrix)
        outcomes = {"settled": settled, "rounded": rounded, **self._others()}
        self.report = replace(self.report, outcomes=outcomes)
        if not settled.harmed or magnified(outcomes):
            return replace(self.report, plan=self._plan(Kept()), advice=self._recommended(Kept()))
        culprits = self._ruined() if self.report.cast == "weights" else Culprits()
        self.report = replace(self.report, stored=culprits.stored)
        kept = self._search(budget, culprits)
        if kept is None:
            return self._without_remedy(settled)
        after = self._tried(kept)
        plan = self._plan(kept)
        self.report = replace(self.report, outcomes={**self.report.outcomes, "planned": after})
        return replace(
            self.report,
            plan=plan,
            patch=lines_to_paste(plan),
            claims=self._claims(kept, settled, after),
            advice=self._recommended(kept),
        )

    def _others(self) -> dict[str, Outcome]:
        """Return how each precision comes out in each way of casting, as far as it makes sense."""
        found = {}
        for precision, dtype in DTYPES.items():
            for cast in _CASTS:
                self.progress(f"trying {precision} {cast}")
                found[f"{precision}-{cast}"] = self._trial(Way(dtype, cast == "weights", self.keep))
        return found

    def _trial(self, way: Way) -> Outcome:
        if way not in self._known:
            self._known[way] = self.lab.trial(way)
        return self._known[way]

    def _tried(self, kept: Kept) -> Outcome:
        modules = tuple(item.module for item in kept.items if item.module)
        places = (item.line.rpartition(":") for item in kept.items if item.line)
        lines = tuple((file, int(line)) for file, _, line in places)
        way = replace(self._way, keep=(*self.keep, *modules), lines=lines)
        return self._trial(replace(way, promote=kept.promote, keep_inputs=kept.inputs, state=kept.state))

    def _ruined(self) -> Culprits:
        self.progress("looking for stored numbers that the cast ruins")
        return ruined(self.lab, self._dtype, self.report.outcomes["rounded"])

    def _search(self, budget: float, culprits: Culprits) -> Kept | None:
        """Return the fewest places that heal, None where none were found."""
        inputs: tuple[str, ...] = culprits.inputs
        alone = [Kept(inputs=inputs)] if inputs else []
        states = (False, True) if self.lab.subject.carries else (False,)
        alone += [Kept(inputs=inputs, state=True)] * self.lab.subject.carries
        for kept in alone:
            if self._tried(kept).well(self.report.precision):
                return kept
        owners = [Suspect(module=name) for name in culprits.owners]
        if owners:
            proved = Kept(tuple(owners), inputs=inputs)
            if self._as_rounded(self._tried(proved)):
                return proved
        places = [*owners, *(one for one in suspects(self.report) if one not in owners)]
        borders = (False, True) if self.report.cast == "weights" else (True,)
        for state, promote in itertools.product(states, borders):
            found = self._fewest(places, Kept((), promote, inputs, state), budget)
            if found is not None:
                return found
        return None

    def _as_rounded(self, outcome: Outcome) -> bool:
        """Tell whether what is left is FP32's, or what rounding the weights alone comes to, and was far more."""
        rounded, settled = self.report.outcomes["rounded"], self.report.outcomes["settled"]
        left = outcome.finite and outcome.error <= _LEFT * rounded.error
        return outcome.well(self.report.precision) or (left and settled.error > HEALS_FACTOR * outcome.error)

    def _fewest(self, places: Sequence[Suspect], start: Kept, budget: float) -> Kept | None:
        def heals(items: tuple[Suspect, ...]) -> bool:
            self.progress(f"trying {plural(len(items), 'place')} in FP32, {items[0].name} first")
            return self._tried(replace(start, items=items)).well(self.report.precision)

        search = Search(heals, budget)
        modules = [one for one in places if one.module]
        lines = [one for one in places if one.line]
        around = [one for one in self._around(modules[:_AROUND]) if one not in modules[:SINGLES]]
        for one in [*modules[:SINGLES], *around, *lines[:_AROUND]]:
            if search.tries((one,)):
                return replace(start, items=self._narrowed((one,), search))
        for candidates in (modules, places) if lines else (modules,):
            found = search.run(candidates) if candidates else None
            if found is not None and found.heals:
                return replace(start, items=self._narrowed(found.items, search))
        return None

    def _around(self, items: Iterable[Suspect]) -> list[Suspect]:
        """Return the modules but the root that hold these and that are called, the innermost first."""
        called = {module.path for module in self.report.reference.modules if module.path}
        around = {name for item in items for name in above(item.module) if name in called}
        return [Suspect(module=name) for name in sorted(around, key=lambda name: (-name.count("."), name))]

    def _narrowed(self, items: tuple[Suspect, ...], search: Search[Suspect]) -> tuple[Suspect, ...]:
        """Return the set with a module's part in its place, wherever that heals too."""
        changed = True
        while changed:
            changed = False
            for at, item in enumerate(items):
                parts = [Suspect(module=name) for name in self._parts(item.module)]
                tried = ((*items[:at], part, *items[at + 1 :]) for part in parts if part not in items)
                smaller = next((one for one in tried if search.tries(one)), None)
                if smaller is not None:
                    items, changed = smaller, True
                    break
        return items

    def _parts(self, module: str) -> Iterator[str]:
        """Yield the modules directly inside one that are called."""
        if not module:
            return
        inside = [m.path for m in self.report.reference.modules if m.path.startswith(f"{module}.")]
        for name in inside:
            if not any(name.startswith(f"{other}.") for other in inside):
                yield name

    def _plan(self, kept: Kept) -> Plan:
        modules = (*self.keep, *(item.module for item in kept.items if item.module))
        return Plan(
            self.report.precision,
            modules,
            tuple(item.line for item in kept.items if item.line),
            cast=self.report.cast,
            outputs=(PROMOTE if kept.promote else BACK) if modules else "",
            keep_inputs=kept.inputs,
            keep_state=kept.state,
        )

    def _claims(self, kept: Kept, before: Outcome, after: Outcome) -> tuple[Claim, ...]:
        shown = []
        if kept.items:
            names = ", ".join(item.name for item in kept.items)
            what = "left in FP32" if kept.promote else f"cast back to {self.report.precision}"
            shown.append(f"keep {names} in FP32, with its outputs {what}")
        if kept.inputs:
            shown.append(f"do not cast the input {', '.join(kept.inputs)}")
        if kept.state:
            shown.append("carry what goes from call to call in FP32")
        return (Claim(" and ".join(shown), Tried.CONFIRMED, before.words, after.words),)

    def _without_remedy(self, settled: Outcome) -> Report:
        """Return the report where no set of modules heals: with what else came out well, or FP32."""
        others = [(name, one) for name, one in self.report.outcomes.items() if "-" in name and not one.harmed]
        precision, cast = others[0][0].split("-") if others else ("fp32", self.report.cast)
        tried = Tried.CONFIRMED if others else Tried.NOT_TRIED
        words = others[0][1].words if others else "the reference"
        how = f"{precision} {cast}" if others else precision
        claim = f"run in {how}: no set of modules tried heals {self.report.precision}"
        verdict = Claim(claim, tried, settled.words, words)
        return replace(self.report, plan=Plan(precision, cast=cast), claims=(verdict,))

    def _recommended(self, kept: Kept) -> tuple[str, ...]:
        """Return what a person should know beside the plan."""
        report = self.report
        shown: list[str] = []
        if kept.items:
            extra = self.lab.kept_bytes([item.module for item in kept.items if item.module])
            shown += [f"keeping this in FP32 takes {size(extra)} more memory for weights"] if extra else []
        kinds = {module.path: module.kind for module in report.reference.modules}
        shown += library_words(self._plan(kept), self.lab.library, kinds)
        if report.cast == "weights" and kept.items and kept.promote:
            shown.append(
                "casting their outputs back to half precision does not heal it: the outputs must stay in FP32"
            )
        other = {"fp16": "bf16", "bf16": "fp16"}[report.precision]
        beside = report.outcomes[f"{other}-{report.cast}"]
        if kept.items and not beside.harmed:
            shown.append(f"{other} {report.cast} needs nothing in FP32 here: {beside.words}")
        return tuple(shown)


def _batch_by_batch(errors: Sequence[float]) -> Iterator[str]:
    """Yield the error of each batch, where there are several."""
    if len(errors) > 1:
        shown = [percent(one) if isfinite(one) else "no finite number" for one in errors]
        yield f"output error by batch: {', '.join(shown)}"
