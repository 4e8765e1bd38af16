"""An optimizer's eps that half precision holds as zero."""

from ampcheck.diagnose.rules.constants import rounded
from ampcheck.diagnose.rules.loop_state import loop_of
from ampcheck.values.formats import BY_DTYPE
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

#: Eps that fp16 holds well, as a remedy for one that it does not.
LARGER_EPS = 1e-4


def zero_eps(eps: float, precision: str) -> str:
    """Return what an eps that is zero in a precision does to the update."""
    zero = f"the optimizer's eps of {eps:g} is zero in {precision}"
    return f"{zero}: where a second moment is zero too, the update is divided by zero"


def vanishing_eps(report: Report) -> tuple[str, tuple[str, ...]]:
    """Return what to say of a script's optimizer whose eps its half weights make zero, and the line that mends it."""
    for thing in loop_of(report).things:
        eps = float(thing.settings.get("eps", 0.0))
        halves = {"float16", "bfloat16"} & set(str(thing.settings.get("dtypes", "")).split())
        if eps and any(not rounded(eps, BY_DTYPE[dtype]) for dtype in halves):
            line = f"# {clean(thing.kind)}(..., eps={LARGER_EPS:g}), or weights in FP32:"
            return f"; {zero_eps(eps, report.precision)}", (line,)
    return "", ()
