"""How well does one FP32 pass predict what fp16 turns into zeros, at every loss scale?

    python tests/studies/prediction.py --report reports/prediction.md [--only NAME ...]

A picture of the same name ending in .svg is written beside the report.
"""

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from prediction_models import CASES, SSD, SSD_STEPS, SSD_TRAINED, Case
from prediction_picture import picture
from prediction_study import ACTIVATIONS, ALL, PURE, WEIGHTS, Point, Study, Tally, study
from prediction_text import AGREEMENT, GAPS, HOW, INTRODUCTION, PUBLISHED, WORDS

from ampcheck.values.formats import FP16

#: Of NVIDIA's histogram: values lost in fp16 and values kept without a scale, and lost at 2**15, in percent.
PUBLISHED_LOST, PUBLISHED_KEPT, PUBLISHED_LOST_AT_15 = 31.0, 5.3, 0.1


def run(case: Case) -> Study:
    begun = time.perf_counter()
    step = case.build()
    with case.settings():
        found = study(case.name, step, case.scales)
    del step
    print(f"{case.name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    return found


def percent(share: float) -> str:
    """Return a share with the digits that matter; below a millionth there is nothing to see."""
    value = 100 * share
    if abs(value) < 1e-4:
        return "0"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(studies: Sequence[Study]) -> str:
    header = [
        "model", "predicted at 2^0", "measured at 2^0", "max gap", "mean gap", "max gap, one-precision lines",
        "max outside the bounds", "lines of two precisions", "covered", "overflow from: predicted / measured",
    ]  # fmt: skip
    return table(header, [_summary_row(found) for found in studies])


def _summary_row(found: Study) -> list[str]:
    start = next(p for p in found.points if p.log2_scale == 0).tallies[ALL]
    gaps = [abs(t.measured - t.predicted) for t in found.clean()]
    pure = [abs(t.measured - t.predicted) for t in found.clean(PURE)]
    outside = [t.outside for t in found.clean()]
    return [
        found.name,
        f"{percent(start.low / start.live)}-{percent(start.high / start.live)}",
        percent(start.measured),
        *(percent(value) for value in (max(gaps), sum(gaps) / len(gaps), max(pure), max(outside))),
        *(f"{100 * value:.0f}" for value in (found.mixed, found.covered)),
        f"{_first(found, predicted=True)} / {_first(found, predicted=False)}",
    ]


def _first(found: Study, *, predicted: bool) -> str:
    over = [p.log2_scale for p in found.points if (p.predicted_overflow if predicted else p.overflowed)]
    return f"2^{min(over)}" if over else "none"


def by_scale(studies: Sequence[Study], kind: str) -> str:
    scales = sorted({p.log2_scale for found in studies for p in found.points if p.log2_scale >= 0})
    rows = []
    for found in studies:
        points = {p.log2_scale: p for p in found.points}
        if any(p.tallies[kind].live for p in found.points):
            rows.append([found.name, *(_cell(points[s], kind) for s in scales)])
    return table(["model", *(f"2^{s}" for s in scales)], rows)


def _cell(point: Point, kind: str) -> str:
    tally = point.tallies[kind]
    shown = "inf" if point.overflowed else percent(tally.measured)
    return f"{percent(tally.predicted)} → {shown}"


def sampled(studies: Sequence[Study]) -> str:
    rows = []
    for found in studies:
        point = next(p for p in found.points if p.log2_scale == 0)
        rows.append([found.name, percent(point.tallies[ALL].measured), percent(point.sampled)])
    return table(["model", "by counts of zeros", "by sampled elements"], rows)


def detector(studies: Sequence[Study]) -> str:
    """Compare the detector's curve with the published one, as it is and moved to the same start."""
    lost = PUBLISHED_LOST / (PUBLISHED_LOST + PUBLISHED_KEPT)
    at_15 = PUBLISHED_LOST_AT_15 / (PUBLISHED_LOST + PUBLISHED_KEPT)
    rows = [["published (over a training)", "66.8", percent(lost), "-", "-", percent(at_15), "0"]]
    for found in studies:
        curve = found.curves[ACTIVATIONS]
        start = min(curve, key=lambda s: abs(curve[s].predicted - lost))
        zeros = found.histogram.zeros / found.histogram.numel
        rows.append(_detector_row(found.name, zeros, curve, 0))
        rows.append(_detector_row(f"the same, gradients 2^{-start} times smaller", zeros, curve, start))
    header = [
        "activation gradients",
        "zero in FP32",
        "lost at 2^0",
        "at 2^3",
        "at 2^8",
        "at 2^15",
        "moved by 2^",
    ]
    return table(header, rows)


def _detector_row(name: str, zeros: float, curve: dict[int, Tally], start: int) -> list[str]:
    shares = [percent(curve[start + s].predicted) if start + s in curve else "-" for s in (0, 3, 8, 15)]
    return [name, f"{100 * zeros:.1f}", *shares, str(start)]


def _range_used(found: Study) -> str:
    """Say how much of fp16's exponents the gradients use: binades that hold all but a thousandth."""
    held = list(found.histogram.exponents())
    whole = sum(count for _, count in held)
    top, above = found.histogram.highest, 0
    for exponent, count in reversed(held):
        above += count
        if above > whole / 1000:
            top = exponent
            break
    unused = FP16.max_exponent - top
    return (
        f"{found.name}: 99.9 % of what is not zero lies below 2^{top + 1}; {unused} binades above are free."
    )


def text(studies: Sequence[Study], name: str) -> str:
    detectors = [found for found in studies if found.name in (SSD, SSD_TRAINED)]
    parts = [
        "# Prediction: one FP32 pass against real fp16 backwards",
        INTRODUCTION.format(torch=torch.__version__, python=platform.python_version()),
        f"![Predicted and measured share of lost gradients]({name}.svg)",
        HOW,
        "## Summary", WORDS, summary(studies), AGREEMENT,
        "## Activation gradients, predicted → measured, percent", by_scale(studies, ACTIVATIONS),
        "## Weight gradients, predicted → measured, percent", by_scale(studies, WEIGHTS),
        "## All half-precision gradients, predicted → measured, percent", by_scale(studies, ALL),
        "## The detector against the published curve", PUBLISHED.format(steps=SSD_STEPS), detector(detectors),
        "\n".join(f"* {_range_used(found)}" for found in detectors),
        "## Where prediction and measurement part", GAPS,
        "## The same by sampled elements, at 2^0, percent", sampled(studies),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="names that contain one of these")
    options = parser.parse_args()
    torch.set_num_threads(2)
    cases = [case for case in CASES if any(part in case.name for part in options.only)]
    studies = [run(case) for case in cases]
    if options.report is None:
        print(summary(studies), by_scale(studies, ALL), sep="\n\n")
        return 0
    detectors = [found for found in studies if found.name in (SSD, SSD_TRAINED)]
    options.report.write_text(text(studies, options.report.stem), encoding="utf-8")
    options.report.with_suffix(".svg").write_text(picture(studies, detectors), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
