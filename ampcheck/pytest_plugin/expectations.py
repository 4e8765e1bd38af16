"""What a test may expect of a report; an expectation that fails says what, where, how much, and what to do."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from ampcheck.compare.config import FAIL_ON, Config
from ampcheck.compare.select import checked, select
from ampcheck.diagnose.tables import TROUBLE_SHARE, best_scale, first_overflow, measured_loss, scale_curve
from ampcheck.renderers.assertion_text import evidence, failure_text, layer_lines, setting
from ampcheck.targets.spec import close
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.formats import SHORT_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.trace import Phase, Site
from ampcheck.values.verdict import Health
from ampcheck.values.wording import ROOT, clean, count, percent, place, plural, power, scale_words


@dataclass(frozen=True, slots=True, repr=False)
class Audited:
    """A report that a test asks for what it expects; each method raises AssertionError where it is otherwise."""

    report: Report
    fail_on: str = "error"  #: what `assert_safe` takes by default

    def __repr__(self) -> str:
        """Return one line: a report is too long to be read in a traceback."""
        health, sentence = self.report.verdict.word, self.report.verdict.sentence
        return f"<{setting(self.report)}: {health}, {sentence}>"

    def assert_safe(self, fail_on: str | None = None, ignore: Iterable[str] = ()) -> None:
        """Expect a step that trains as in FP32, and no finding of a severity or worse but those ignored."""
        __tracebackhide__ = True
        limit = fail_on or self.fail_on
        if limit not in FAIL_ON:
            raise ValueError(f"expected fail_on to be {', '.join(FAIL_ON)}, got {limit!r}")
        if limit == "never":
            return
        report = select(self.report, checked(Config(ignore=tuple(ignore))))
        bad = [finding for finding in report.findings if finding.severity.rank <= Severity(limit).rank]
        health, sentence = report.verdict.word, report.verdict.sentence
        if bad or health not in {Health.SAFE, Health.RISK}:
            worst = bad[0] if bad else None
            head = (
                f"{worst.code} {worst.name} in {report.precision}"
                if worst
                else f"{report.precision} is {health}"
            )
            codes = ", ".join(f'"{code}"' for code in dict.fromkeys(clean(finding.code) for finding in bad))
            hint = f"more: ampcheck explain {clean(worst.code)}; to accept: ignore=[{codes}]" if worst else ""
            _fail(head, report, [sentence], evidence(report, bad), [hint] if hint else [])

    def assert_underflow_below(self, share: float, *, phase: str = "backward") -> None:
        """Expect that fewer of the elements that FP32 has became zero: gradients, or results of the forward."""
        __tracebackhide__ = True
        report, where = self.report, Phase(phase)
        self._went_through()
        loss = measured_loss(report, where)
        if loss.share < share or not loss.lost:
            return
        what = {Phase.BACKWARD: "gradient elements", Phase.FORWARD: "results of the forward"}[where]
        _fail(
            f"{percent(loss.share)} of the {what} underflow, not below {percent(share)}",
            report,
            [f"{count(loss.lost)} of {count(loss.live)} {what} that are not zero in FP32 are zero"],
            layer_lines(report, where),
            _better_scale(report, loss.share) if where is Phase.BACKWARD else [],
            evidence(report, [finding for finding in report.findings if "underflow" in finding.kind]),
        )

    def assert_no_overflow(self) -> None:
        """Expect that every number that is finite in FP32 is finite in low precision too."""
        __tracebackhide__ = True
        report = self.report
        self._went_through()
        site = first_overflow(report)
        if site is None:
            return
        held = report.low.sites[site]
        share = f"{count(held.nonfinite)} of {count(held.numel)} elements are inf or NaN"
        over = [finding for finding in report.findings if site in finding.sites]
        _fail(
            f"{report.precision} overflows in the {site.phase}, first {place(site)}",
            report,
            [f"{share}; {report.precision} ends at {report.format.max:.5g}"],
            evidence(report, over, site),
        )

    def assert_fp32_set(self, places: Iterable[str]) -> None:
        """Expect the plan to keep exactly these in FP32: modules or "file:line", each by name or pattern."""
        __tracebackhide__ = True
        report, wanted = self.report, tuple(places)
        self._has_plan()
        kept = (*report.plan.fp32_modules, *report.plan.fp32_lines) if report.plan else ()
        new = [name for name in kept if not _matches(name, wanted)]
        stale = [name for name in wanted if not any(_matches(found, [name]) for found in kept)]
        if not new and not stale:
            return
        _fail(
            f"other places have to stay in FP32: {_listed(kept)}",
            report,
            [f"expected {_listed(wanted)}"],
            [f"+ {clean(name)}  has to stay in FP32 and was not expected" for name in new],
            [f"- {clean(name)}  was expected and need not stay in FP32" for name in stale],
            evidence(report, _errors(report)) if new else [],
        )

    def assert_scale_between(self, low: float, high: float) -> None:
        """Expect the advised initial loss scale to lie in this range, both ends included."""
        __tracebackhide__ = True
        report = self.report
        self._has_plan()
        scaler = report.plan.scaler if report.plan else None
        if scaler is not None and low <= scaler.init_scale <= high:
            return
        advised = scale_words(scaler.init_scale) if scaler else "none, training needs no GradScaler"
        _fail(
            f"the advised loss scale is {advised}",
            report,
            [f"expected from {scale_words(low)} to {scale_words(high)}", "", *map(clean, report.advice)],
        )

    def assert_dtypes(self, dtypes: Mapping[str, Any]) -> None:
        """Expect what modules hand on to be of these dtypes: {"head": torch.float32, "blocks.*.norm": "fp32"}."""
        __tracebackhide__ = True
        report = self.report
        self._went_through()
        handed = _handed_on(report)
        wrong: dict[str, str] = {}
        for pattern, dtype in dtypes.items():
            names = [name for name in handed if _matches(name, [pattern])]
            if not names:
                wrong[pattern] = f"{clean(pattern)}  returned no tensor{close(pattern, list(handed))}"
            for name in names:
                if handed[name] != {_short(dtype)}:
                    found = " and ".join(sorted(handed[name]))
                    wrong[name] = f"{clean(name) or ROOT}  expected {_short(dtype)}, got {found}"
        if wrong:
            _fail(
                f"{plural(len(wrong), 'dtype')} not as expected",
                report,
                wrong.values(),
                evidence(report, _errors(report), _last_operation(report, next(iter(wrong)))),
            )

    def _went_through(self) -> None:
        """Refuse to judge the numbers of a step that raised: nothing lost would be nothing seen."""
        __tracebackhide__ = True
        report = self.report
        if report.low.failure is not None:
            raised = [finding for finding in report.findings if finding.code == "AMP301"]
            _fail(
                f"the step raises in {report.precision}",
                report,
                [report.verdict.sentence],
                evidence(report, raised),
            )

    def _has_plan(self) -> None:
        __tracebackhide__ = True
        if self.report.plan is None:
            _fail("there is no plan to judge", self.report, ["the audit only recorded; leave `verify` on"])


def _fail(head: str, report: Report, *parts: Iterable[str]) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(failure_text(head, report, *parts))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


def _handed_on(report: Report) -> dict[str, set[str]]:
    """Return by module the dtypes of its floating-point outputs."""
    handed: dict[str, set[str]] = {}
    for site in report.low.sites:
        if not site.op and site.phase is Phase.FORWARD and site.slot.startswith("output"):
            handed.setdefault(site.module, set()).add(_short(site.dtype))
    return handed


def _last_operation(report: Report, module: str) -> Site | None:
    """Return where a module's own code computes what it hands on, if it does."""
    own = (site for site in report.low.sites if site.module == module and site.phase is Phase.FORWARD)
    return max((site for site in own if site.op and site.file), key=lambda site: site.line, default=None)


def _short(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return SHORT_DTYPE.get(name, name)


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(clean, names)) or "none"


def _better_scale(report: Report, share: float) -> list[str]:
    """Return the loss scale at which far less underflows, as the FP32 run predicts; nothing where there is none."""
    best = best_scale(scale_curve(report))
    predicted = best.underflowed.low / best.nonzero if best and best.nonzero else 1.0
    if best is None or predicted > min(share / 2, TROUBLE_SHARE):
        return ["", "no loss scale would do"]
    return [
        "",
        f"loss scale {power(best.log2_scale)} lets {percent(predicted)} underflow, predicted from the FP32 run",
    ]
