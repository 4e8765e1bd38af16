"""Checks by direct observation that every case of the zoo is what its TRUTH says.

python tests/zoo/truth.py [case ...]
The symptom shows in low precision and not in FP32, it starts in the named layers and operations, running
just `fp32_fix` with autocast off removes it and no part of that does, and the scale bound is where a sweep
finds it.
"""

import sys
import time
from itertools import combinations

import torch
from comparing import (
    HARM,
    difference,
    empty_handed,
    first_wrong,
    new_births,
    owned,
    place_is_wrong,
    underflow,
)
from running import CASES, Run, load, run, train

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS = {
    *("forward-overflow", "backward-overflow", "grad-underflow", "forward-underflow"),
    *("precision-loss", "dtype-error", "stagnant-update", "clean"),
}
FORWARD = {"forward-overflow", "forward-underflow", "precision-loss"}
LOG2_DEFAULT = 16  # where GradScaler starts
LOG2_MID = 8  # keeps gradients of forward cases clear of both ends
SCALES = range(25)
HEALTHY = {"float16": 0.05, "bfloat16": 0.12}  # the same for clean cases
LOST = 0.05  # share of gradient entries that matter and are zero
SLACK = 2  # powers of two by which a lower bound may be too high: the share falls slowly there
STUCK = 0.5  # share of entries that move in FP32 and stay here


def check(case) -> tuple[list[str], str]:
    """Return what is wrong with a case's TRUTH, and a note on what was seen."""
    truth = case.TRUTH
    wrong = check_form(case)
    if wrong:
        return wrong, ""
    if truth["kind"] == "stagnant-update":
        return check_stagnant(case)
    reference = run(case, watch=True)
    if reference.broken:
        return [f"FP32 is not clean: {reference.error or reference.loss}"], ""
    if truth["kind"] == "clean":
        return check_clean(case, reference)
    low = run(case, dtype_of(case), scale_of(truth), watch=True)
    wrong, note = CHECKS[truth["kind"]](case, low, reference)
    if truth["kind"] in FORWARD | {"dtype-error"} and not harmed(case, low, reference):
        wrong.append(f"no symptom: error {difference(low, reference):.3g}")
    return wrong + check_fix(case, reference), note


def check_form(case) -> list[str]:
    """Check that TRUTH is complete and names modules that exist."""
    truth = case.TRUTH
    missing = {"kind", "dtype", "layers", "op", "fp32_fix", "scaler", "source"} - truth.keys()
    if missing:
        return [f"TRUTH lacks {missing}"]
    known = {name for name, _ in case.model().named_modules()}
    wrong = [f"no module {name!r}" for name in truth["layers"] + truth["fp32_fix"] if name not in known]
    if truth["kind"] not in KINDS or truth["dtype"] not in DTYPES or not truth["source"]:
        wrong.append("unknown kind or dtype, or no source")
    return wrong


def check_forward_overflow(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that the first non-finite number of the forward is born where TRUTH says."""
    born = new_births(low, reference, "forward")
    if not born:
        return ["nothing becomes infinite in the forward"], ""
    return place_is_wrong(case.TRUTH, born[0].module, born[0].op), f"first {born[0]}"


def check_forward_underflow(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that non-zeros become zero in the named layers, and nothing overflows before."""
    truth = case.TRUTH
    lost = {place: n for place, n in low.underflowed.items() if n and owned(truth["layers"], place[0])}
    born = new_births(low, reference, "forward") + new_births(low, reference, "backward")
    wrong = [] if lost else ["nothing is underflowed in the named layers"]
    if born:
        wrong += place_is_wrong(truth, born[0].module, "")
    return wrong, f"underflowed {lost}, first {born[:1]}"


def check_backward_overflow(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that the loss is finite, the gradients are not, and, if a scale heals it, up to which."""
    truth = case.TRUTH
    bound = bound_of(truth)
    wrong = ["the loss is not finite"] if low.loss - low.loss != 0 else []
    born = new_births(low, reference, "backward")
    if not born:
        return [*wrong, "nothing becomes infinite in the backward"], ""
    wrong += place_is_wrong(truth, born[0].module, born[0].op)
    broken = [log2 for log2 in SCALES if run(case, dtype_of(case), log2).nan_grad]
    if bound is None and broken != list(SCALES):
        wrong.append(f"a scale heals it; it breaks at {broken}")
    if bound is not None and broken != list(range(bound + 1, SCALES.stop)):
        wrong.append(f"the bound is wrong: broken at {broken}")
    return wrong, f"first {born[0]}"


def check_grad_underflow(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that gradients which matter are zero, and from which scale on they are not."""
    truth = case.TRUTH
    layers, bound = truth["layers"], bound_of(truth)
    before = underflow(low, reference, layers)
    wrong = [] if before > HARM else [f"only {before:.3f} underflow"]
    unnamed = [name for name in empty_handed(low, reference) if name not in layers]
    wrong += [f"these get no gradient, too: {unnamed}"] if unnamed else []
    if bound is None:
        return wrong, f"underflow {before:.3f}"
    sweep = {log2: run(case, dtype_of(case), log2) for log2 in SCALES}
    share = {log2: underflow(r, reference, layers) for log2, r in sweep.items() if not r.nan_grad}
    enough = [log2 for log2, lost in share.items() if lost <= LOST]
    usual = bound > LOG2_DEFAULT or LOG2_DEFAULT in enough
    if bound not in enough or not usual or share[bound - SLACK] <= LOST:
        wrong.append(f"the bound is wrong: { ({k: round(v, 3) for k, v in share.items()}) }")
    return wrong, f"underflow {before:.3f}, enough from 2**{enough[:1]} to 2**{enough[-1:]}"


def check_precision(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that the error comes without infinities, and that the operation where it shows is a right one.

    What rounded, TRUTH may name as well; where it shows outside the named layers, those must be the cause.
    """
    truth = case.TRUTH
    born = new_births(low, reference, "forward")
    wrong = [f"infinite: {born[0]}"] if born else []
    shown = first_wrong(low, reference)
    if shown and shown[0] in truth["layers"]:
        wrong += place_is_wrong(truth, *shown)
    elif not shown or not truth["fp32_fix"]:
        wrong.append(f"it shows in {shown}")
    return wrong, f"error {difference(low, reference):.3g}, shows in {shown}"


def check_dtype(case, low: Run, reference: Run) -> tuple[list[str], str]:
    """Check that the step raises in a named layer."""
    if not low.error:
        return ["it does not raise"], ""
    return place_is_wrong(case.TRUTH, low.raised_in, ""), f"{low.error[:70]} @ {low.raised_in!r}"


CHECKS = {
    "forward-overflow": check_forward_overflow,
    "forward-underflow": check_forward_underflow,
    "backward-overflow": check_backward_overflow,
    "grad-underflow": check_grad_underflow,
    "precision-loss": check_precision,
    "dtype-error": check_dtype,
}


def check_stagnant(case) -> tuple[list[str], str]:
    """Check that what moves in FP32 training stays, or breaks, in low precision."""
    truth = case.TRUTH
    low, low_after = train(case, dtype_of(case))
    wide, wide_after = train(case)
    moved = stuck = broken = 0
    for name in (name for name in low if owned(truth["layers"], name)):
        moves = wide[name] != wide_after[name]
        moved += int(moves.sum())
        stuck += int((moves & (low[name] == low_after[name])).sum())
        broken += int((~low_after[name].isfinite()).sum())
    seen = broken > 0 if truth.get("probe") == "nonfinite" else moved > 0 and stuck / moved > STUCK
    sound = all(bool(tensor.isfinite().all()) for tensor in wide_after.values())
    note = f"stuck {stuck} of {moved}, not finite {broken}"
    return [] if seen and sound else [f"no symptom, or FP32 is not clean: {note}"], note


def check_clean(case, reference: Run) -> tuple[list[str], str]:
    """Check that nothing at all happens, at the scale on which GradScaler settles."""
    wrong, notes = [], []
    for name, dtype in DTYPES.items():
        log2, low = settled(case, dtype)
        born = [b for phase in ("forward", "backward") for b in new_births(low, reference, phase)]
        error, lost = difference(low, reference), underflow(low, reference, [""])
        notes.append(f"{name} 2**{log2} error {error:.3f} underflow {lost:.3f}")
        if low.broken or born or error > HEALTHY[name] or lost > LOST:
            wrong.append(f"{notes[-1]} {low.error} {born[:2]}")
    return wrong, "; ".join(notes)


def check_fix(case, reference: Run) -> list[str]:
    """Check that `fp32_fix` heals the case, and that no smaller part of it does."""
    fix = case.TRUTH["fp32_fix"]
    parts = [part for size in range(1, len(fix)) for part in combinations(fix, size)]
    wrong = [f"{part} alone heals it" for part in parts if not still_ill(case, part, reference)]
    if fix and still_ill(case, fix, reference):
        low = run(case, dtype_of(case), scale_of(case.TRUTH), fix)
        wrong.append(f"fp32_fix does not heal it: {low.error or difference(low, reference)}")
    return wrong


def still_ill(case, modules, reference: Run) -> bool:
    """Say whether the symptom is there when just these modules run in FP32."""
    low = run(
        case, dtype_of(case), scale_of(case.TRUTH), modules, watch=case.TRUTH["kind"] == "forward-overflow"
    )
    return harmed(case, low, reference)


def harmed(case, low: Run, reference: Run) -> bool:
    """Say whether a run shows the symptom of the case's kind."""
    truth = case.TRUTH
    kind = truth["kind"]
    if low.error or kind == "dtype-error":
        return bool(low.error)
    if kind == "backward-overflow":
        return low.broken
    if kind == "grad-underflow":
        return low.broken or underflow(low, reference, truth["layers"]) > HARM
    return low.broken or difference(low, reference) > HARM


def settled(case, dtype) -> tuple[int, Run]:
    """Return log2 of the first scale, from GradScaler's on down, with finite gradients, and the run at it."""
    for log2 in range(LOG2_DEFAULT if dtype is torch.float16 else 0, -1, -1):
        low = run(case, dtype, log2, watch=True)
        if not low.nan_grad:
            break
    return log2, low


def dtype_of(case) -> torch.dtype:
    """Return the dtype in which the case fails."""
    return DTYPES[case.TRUTH["dtype"]]


def bound_of(truth) -> int | None:
    """Return log2 of the scale that TRUTH bounds, None without a bound."""
    return int(truth["scaler"].split("**")[1]) if truth["scaler"].startswith("needs-scale") else None


def scale_of(truth) -> int:
    """Return log2 of the scale at which the symptom shows."""
    if truth["kind"] in FORWARD:
        return LOG2_MID
    return LOG2_DEFAULT if truth["scaler"].startswith("needs-scale<=") else 0


def main(names: list[str]) -> int:
    """Check the named cases, or all, and return how many are wrong."""
    torch.set_num_threads(1)
    failed = 0
    paths = [path for path in sorted(CASES.glob("*.py")) if not names or path.stem in names]
    for path in paths:
        begun = time.perf_counter()
        wrong, note = check(load(path))
        failed += bool(wrong)
        seconds = time.perf_counter() - begun
        print(
            f"{'FAIL' if wrong else 'ok':4} {path.stem:34} {seconds:4.1f}s {note}",
            *wrong,
            sep=" | ",
            flush=True,
        )
    print(f"{len(paths)} cases, {failed} wrong")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
