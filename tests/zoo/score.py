"""Marks ampcheck's answers on the zoo, in one process; the judge is `truth`, which shares no rule with it.

python tests/zoo/score.py [case ...] [--markdown FILE]

detect  the case's kind is among the error-level findings
locate  the first error-level finding names a right module, and a right operation where the case names any
heal    with exactly the plan's FP32 modules out of autocast the symptom is gone
lean    ... and they are no more than the known smallest set
scale   the plan's initial loss scale satisfies the known bound
quiet   a clean case has no error-level finding
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import torch
from comparing import place_is_wrong
from running import CASES, load, run
from truth import bound_of, still_ill
from verdict_laws import check_the_law, check_words

from ampcheck.errors import AmpcheckError
from ampcheck.run.audit import audit
from ampcheck.targets import load as load_target
from ampcheck.values.settings import Settings

PRECISIONS = {"float16": "fp16", "bfloat16": "bf16"}
QUESTIONS = ("detect", "locate", "heal", "lean", "scale", "quiet")


def mark(path: Path) -> dict:
    """Return one case's marks: a question that the case does not ask is missing."""
    case = load(path)
    truth = case.TRUTH
    row = {"case": path.stem, "kind": truth["kind"], "said": "", **dict.fromkeys(asked(truth), False)}
    begun = time.perf_counter()
    try:
        report = audit(load_target(str(path)), Settings(precision=PRECISIONS[truth["dtype"]]))
    except (AmpcheckError, RuntimeError) as error:
        return row | {
            "said": f"{type(error).__name__}: {str(error)[:80]}",
            "seconds": time.perf_counter() - begun,
        }
    row["seconds"] = time.perf_counter() - begun
    check_the_law(report)
    check_words(report)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    row["said"] = "; ".join(f"{finding.kind} {_place(finding)}" for finding in errors[:3])
    if truth["kind"] == "clean":
        return row | {"quiet": not errors}
    kinds = {truth["kind"], *truth.get("alt_kinds", [])}
    row["detect"] = any(finding.kind in kinds for finding in errors)
    row["locate"] = bool(errors) and well_placed(truth, errors[0])
    return row | marks_of_plan(case, getattr(report, "plan", None), row)


def asked(truth) -> list[str]:
    """Return the questions that a case asks."""
    if truth["kind"] == "clean":
        return ["quiet"]
    plan = ["heal", "lean"] if truth["fp32_fix"] else []
    return ["detect", "locate", *plan, *(["scale"] if bound_of(truth) is not None else [])]


def well_placed(truth, finding) -> bool:
    """Say whether a finding starts at a right place; a finding without a place does not."""
    origin = finding.origin
    return origin is not None and not place_is_wrong(truth, origin.module, base_name(origin.op))


def base_name(op: str) -> str:
    """Return an operator's name without namespace and overload."""
    return op.removeprefix("aten::").removeprefix("aten.").split(".")[0]


def marks_of_plan(case, plan, row) -> dict:
    """Return the marks for what the plan advises."""
    marks, truth = {}, case.TRUTH
    modules = list(plan.fp32_modules) if plan is not None else []
    if "heal" in row:
        known = {name for name, _ in case.model().named_modules()}
        marks["heal"] = (
            bool(modules) and set(modules) <= known and not still_ill(case, modules, run(case, watch=True))
        )
        marks["lean"] = marks["heal"] and len(modules) <= len(truth["fp32_fix"])
    if "scale" in row:
        scale = initial_scale(plan)
        limit = 2.0 ** bound_of(truth)
        marks["scale"] = scale is not None and (scale >= limit if ">=" in truth["scaler"] else scale <= limit)
    return marks


def initial_scale(plan) -> float | None:
    """Return a plan's first loss scale; a plan of another shape is the judge's fault and raises."""
    if plan is None:
        return None
    scaler = plan.scaler if hasattr(plan, "scaler") else plan.grad_scaler
    return None if scaler is None else scaler.init_scale


def table(rows: list[dict]) -> str:
    """Return the marks by kind as Markdown."""
    lines = [f"| kind | {' | '.join(QUESTIONS)} |", "|---" * (len(QUESTIONS) + 1) + "|"]
    kinds = list(dict.fromkeys(row["kind"] for row in sorted(rows, key=lambda row: row["kind"])))
    for kind in [*kinds, "all"]:
        chosen = [row for row in rows if kind in {row["kind"], "all"}]
        lines.append(f"| {kind} | {' | '.join(ratio(chosen, question) for question in QUESTIONS)} |")
    return "\n".join(lines)


def ratio(rows: list[dict], question: str) -> str:
    """Return "right/asked", or "-" where nobody asked."""
    marks = [row[question] for row in rows if question in row]
    return f"{sum(marks)}/{len(marks)}" if marks else "-"


def details(rows: list[dict]) -> str:
    """Return the marks case by case as Markdown."""
    lines = ["| case | kind | right | wrong | error-level findings | s |", "|---|---|---|---|---|--:|"]
    for row in rows:
        right, wrong = (", ".join(q for q in QUESTIONS if row.get(q) is want) for want in (True, False))
        lines.append(
            f"| {row['case']} | {row['kind']} | {right} | {wrong} | {row['said']} | {row['seconds']:.1f} |"
        )
    return "\n".join(lines)


def _place(finding) -> str:
    origin = finding.origin
    return f"`{origin.module}`:{base_name(origin.op)}" if origin else "nowhere"


def main() -> None:
    """Mark the named cases, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--markdown", type=Path)
    asked_for = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for path in sorted(CASES.glob("*.py")):
        if not asked_for.cases or path.stem in asked_for.cases:
            rows.append(mark(path))
            marks = " ".join(f"{'+' if rows[-1][q] else '-'}{q}" for q in QUESTIONS if q in rows[-1])
            print(f"{path.stem:34} {rows[-1]['seconds']:5.1f}s {marks} | {rows[-1]['said']}", flush=True)
    print(table(rows))
    if asked_for.markdown:
        asked_for.markdown.write_text(f"{table(rows)}\n\n{details(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
