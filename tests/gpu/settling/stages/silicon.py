"""Stage b: results of operators on the GPU against exact ones and against the emulation, in roundings of the format."""

from collections.abc import Iterator
from functools import partial

from settling.measuring import DTYPES, measured
from settling.operators import OTHERS, PRODUCTS, WIDE, Operator, without_complex_halves
from settling.plan import Scope
from settling.work import Job

_SMALL = frozenset({"bmm", "attention", "lstm", "softmax"})
#: Operators that are also measured in float32, where TF32 may round their inputs.
_TF32 = frozenset({"mm", "bmm", "convolution"})


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each operator, dtype and accumulation setting, the default ones first."""
    for operator, dtype, how in sorted(_all(), key=lambda which: which[2] != "default"):
        if not scope.small or (operator.name in _SMALL and how == "default"):
            key = f"{operator.name} | {dtype} | {how}"
            yield Job(key, partial(measured, operator.name, dtype, how, scope.device))


def _all() -> Iterator[tuple[Operator, str, str]]:
    for operator in (*PRODUCTS, *OTHERS):
        for dtype in ("float16", "bfloat16"):
            if without_complex_halves(operator, DTYPES[dtype]):
                for how in operator.settings:
                    if dtype == "float16" or how != "float16 sums":
                        yield operator, dtype, how
        if operator.name in _TF32:
            for how in WIDE:
                yield operator, "float32", how
