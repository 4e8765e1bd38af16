"""What two runs of a case differ in."""

import torch
from running import Run

HARM = 0.15  # relative error, or share of gradient entries lost: far above rounding in either format
MATTERS = 0.01  # of a tensor's RMS: smaller gradient entries are not missed


def difference(low: Run, reference: Run) -> float:
    """Return the relative error of the loss or of all gradients together, whichever is larger."""
    if low.broken:
        return float("inf")
    pairs = [(low.grads.get(name, torch.zeros_like(g)), g) for name, g in reference.grads.items()]
    distance = sum(float((a - b).double().pow(2).sum()) for a, b in pairs) ** 0.5
    size = sum(float(b.double().pow(2).sum()) for _, b in pairs) ** 0.5
    loss = abs(low.loss - reference.loss) / max(abs(reference.loss), 1e-12)
    return max(loss, distance / size if size else 0.0)


def underflow(low: Run, reference: Run, layers) -> float:
    """Return the share of gradient entries above 1 % of their tensor's RMS in FP32 that are zero here."""
    zero = total = 0
    for name, grad in reference.grads.items():
        if owned(layers, name):
            matter = (grad.abs() >= MATTERS * grad.pow(2).mean().sqrt()) & (grad != 0)
            total += int(matter.sum())
            zero += int((matter & (low.grads.get(name, torch.zeros_like(grad)) == 0)).sum())
    return zero / total if total else 0.0


def zeroed(low, exact) -> float:
    """Return the share of entries above 1 % of the RMS in FP32 that are zero here."""
    matter = (exact.abs() >= MATTERS * exact.pow(2).mean().sqrt()) & (exact != 0)
    return float((matter & (low == 0)).sum() / matter.sum()) if bool(matter.any()) else 0.0


def empty_handed(low: Run, reference: Run) -> list[str]:
    """Return the modules whose output's gradient vanishes."""
    pairs = [(name, low.output_grads[name], grad) for name, grad in reference.output_grads.items()]
    return [name for name, grad, exact in pairs if zeroed(grad, exact) > HARM]


def first_wrong(low: Run, reference: Run) -> tuple[str, str] | None:
    """Return module and operation of the first result of the forward whose relative error is harm."""
    for (module, op, index), result in low.results.items():
        exact = reference.results.get((module, op, index))
        if op == "_to_copy" or exact is None or exact.shape != result.shape:
            continue
        if float((result - exact).norm()) > HARM * float(exact.norm()):
            return module, op
    return None


def new_births(low: Run, reference: Run, phase: str) -> list:
    """Return the operations that make infinities in low precision only."""
    return [birth for birth in low.births if birth.phase == phase and birth not in reference.births]


def place_is_wrong(truth, module: str, op: str) -> list[str]:
    """Return what is wrong with a place, if it is not one that TRUTH names; an empty op is not compared."""
    ops = {name.strip() for name in truth["op"].split(",") if name.strip()}
    fits = module in truth["layers"] and (not ops or not op or op.rstrip("_") in ops)
    return [] if fits else [f"it starts in {module!r} with {op or 'any op'}"]


def owned(layers, name: str) -> bool:
    """Say whether a module or tensor lies in one of the layers; '' holds everything."""
    return any(not layer or name == layer or name.startswith(f"{layer}.") for layer in layers)
