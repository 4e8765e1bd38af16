"""The page of the false-alarm study."""

import math
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from ampcheck.values.verdict import Health

if TYPE_CHECKING:
    from collections.abc import Sequence

    from false_alarms import Proof, Row
    from judge import Opinion, Training

_HEAD = """# False alarms: ordinary models {state}

Made by `python tests/studies/false_alarms.py {options}`.

{models} ordinary models ({zoos}), as they come, audited in fp16 and in bf16 under CUDA's casting rules on the CPU:
one training step each, {budget:.0f} s to look for a remedy. Every finding of severity *error* is a false alarm unless
runs prove the harm: each one is listed below with the same step made anew by a plain loop on several draws of weights
and batch, without ampcheck's recorder, lab or rules. *Gradient error* is the L2 distance of all gradients from FP32's
over their norm, at the loss scale at which GradScaler settles; *lost unscaled* the share of the gradient elements that
matter (1 % of their tensor's RMS) that are zero in fp16 without a loss scale. Random networks magnify rounding:
*weights rounded* is the gradient error of an FP32 step whose weights, and nothing else, were rounded to the format,
given where the audit's error is above 10 %. What rounding the weights does by itself is no place's fault.

**{errors} error findings** in {audits} audits, **{proved} of them proved** by the second runs; {warnings} warnings.
The headlines: {verdicts}.
torch {torch}.

"""
_TABLE = (
    "| model | fp16 errors | warnings | settles at | gradient error | weights rounded | lost unscaled | bf16 errors "
    "| warnings | gradient error | weights rounded |\n|---|---|---|---:|---:|---:|---:|---|---|---:|---:|\n"
)
_PROOFS = """
## Error findings, and what other runs say

*settled* or *unscaled* says at which loss scale; three draws of weights and batch, each number one draw. *healed* is
the same with the plan's modules in FP32. An overflow counts as proved where no scale is small enough; an error where it
is three times that of rounded weights, and what remains of it with the plan at most a third. Or where training shows
it: *trained on* are the mean losses of the last 20 of 60 further steps, from the same weights on the same batches, in
FP32, in low precision and with the plan, by random state; low precision has to end above FP32 in each, by three times
what the plan, which rounds all the rest, leaves of that.

| model | finding | message | ampcheck | a plain loop | healed | trained on |
|---|---|---|---|---|---|---|
"""
#: Where harm begins, here as in the product.
_HARM = 0.15
#: How many times larger an error must be than what remains of it, or than what rounding the weights gives.
_TIMES = 3.0


def page(rows: "Sequence[Row]", proofs: "Sequence[Proof]", budget: float, trained: int = 0) -> str:
    """Return the page as Markdown."""
    zoos = {
        zoo: len({r.spec for r in held})
        for zoo, held in groupby(rows, lambda row: row.spec.partition(":")[0])
    }
    words = (f"--trained {trained} ", "_trained", " MODEL ...") if trained else ("", "", "")
    text = _HEAD.format(
        state=f"after {trained} steps in FP32 (AdamW at 3e-4)" if trained else "at random initialisation",
        options="{}--report reports/false_alarms{}.md{}".format(*words),
        models=len({row.spec for row in rows}),
        zoos=", ".join(f"{count} of {zoo}" for zoo, count in zoos.items()),
        budget=budget,
        errors=len(proofs),
        audits=len(rows),
        proved=sum(proved(proof) for proof in proofs),
        warnings=sum(len(row.warnings) for row in rows),
        verdicts=_verdict_counts(rows),
        torch=torch.__version__.partition("+")[0],
    )
    text += _TABLE + "".join(_row(*held) for held in zip(rows[::2], rows[1::2], strict=True))
    return text + (_PROOFS + "".join(map(_proof, proofs)) if proofs else "")


def _verdict_counts(rows: "Sequence[Row]") -> str:
    """Return how often each headline was given, and how many of the unsafe ones no error finding stands behind."""
    given = [(row.report.verdict.word, bool(row.errors)) for row in rows if row.report is not None]
    counts = ", ".join(f"{sum(one is health for one, _ in given)} {health}" for health in Health)
    unfounded = sum(one is Health.UNSAFE and not error for one, error in given)
    return f"{counts}; {unfounded} unsafe without an error finding"


def proved(proof: "Proof") -> bool:
    """Tell whether all plain runs show the harm that is claimed, and the plan's modules in FP32 take it away.

    A GradScaler that skips its first steps and then settles does no harm. What rounding the weights does by
    itself, and what FP32 changes only a little, is the model's nature.
    """
    overflow = proof.finding.kind == "backward-overflow"
    limit = max(_HARM, _TIMES * (proof.row.rounded or 0.0))
    harm = (not math.isfinite(one.error) if overflow else one.harmed(limit) for one in proof.opinions)
    worst = max(one.error for one in proof.opinions)
    healed = (not one.harmed(_HARM) and one.error <= worst / _TIMES for one in proof.healed)
    return (all(harm) and all(healed)) or trains_worse(proof.trainings)


def trains_worse(trainings: "Sequence[Training]") -> bool:
    """Tell whether low precision trains worse than FP32 with the same batches, and not where the plan is in FP32."""
    return bool(trainings) and all(
        one.low - one.wide > _TIMES * abs(one.healed - one.wide) for one in trainings
    )


def _row(fp16: "Row", bf16: "Row") -> str:
    cells = [fp16.spec, *_found(fp16), *_figures(fp16), *_found(bf16), *_figures(bf16)[1:3]]
    return f"| {' | '.join(cells)} |\n"


def _found(row: "Row") -> tuple[str, str]:
    if row.report is None:
        return f"raised {row.raised}", "–"
    errors, warnings = (" ".join(finding.code for finding in held) for held in (row.errors, row.warnings))
    return errors or "none", warnings or "none"


def _figures(row: "Row") -> tuple[str, str, str, str]:
    outcomes = {} if row.report is None else row.report.outcomes
    settled, unscaled = outcomes.get("settled"), outcomes.get("unscaled")
    if settled is None:
        return "–", "–", "–", "–"
    error = f"{settled.grad_error:.2%}" if settled.finite else settled.words
    rounding_baseline = "" if row.rounded is None else f"{row.rounded:.2%}"
    return (
        f"2^{settled.log2_scale}",
        error,
        rounding_baseline,
        "–" if unscaled is None else f"{unscaled.underflow:.2%}",
    )


def _proof(proof: "Proof") -> str:
    assert proof.row.report is not None
    scale = (
        "unscaled"
        if proof.finding.numbers.get("log2_scale") == 0 and proof.row.precision == "fp16"
        else "settled"
    )
    outcome = proof.row.report.outcomes.get(scale)
    said = "–" if outcome is None else f"{scale}: {outcome.words}"
    cells = [
        f"{proof.row.spec} {proof.row.precision}",
        f"{proof.finding.code}{'' if proved(proof) else ' **not proved**'}",
        proof.finding.message.replace("|", "\\|"),
        said,
        _opinions(proof.opinions),
        _opinions(proof.healed) or "–",
        "; ".join(f"{one.wide:.4f}, {one.low:.4f}, {one.healed:.4f}" for one in proof.trainings) or "–",
    ]
    return f"| {' | '.join(cells)} |\n"


def _opinions(opinions: "Sequence[Opinion]") -> str:
    return "; ".join(
        f"2^{one.log2_scale} error {one.error:.1%} lost {one.underflow:.1%}"
        if math.isfinite(one.error)
        else f"2^{one.log2_scale} not finite"
        for one in opinions
    )
