"""What came back from a GPU against what this CPU says now: the tests that hold on every machine, for ever."""

from collections.abc import Iterable, Iterator

import torch

from settling.golden import Golden
from settling.judging import differs, judged
from settling.measuring import apart_now
from settling.models import MAKERS
from settling.operators import OTHERS, PRODUCTS
from settling.stages.traces import DTYPES
from settling.tracing import apart, traced

#: The emulation may be so many roundings farther from the GPU than it was on the day: another CPU adds up otherwise.
SLACK = 1.0
#: What oneDNN computes as a whole on some CPUs, as on that of the day, and what is computed step by step on all.
_WHOLE, _STEPS = "lstm", "gru"
_MODELS = {maker.__name__ for maker in MAKERS}
_OPERATORS = {operator.name for operator in (*PRODUCTS, *OTHERS)}


def traces(golden: Golden, known_here: dict[str, str] | None = None) -> list[str]:
    """Return what the emulation on this CPU does otherwise than CUDA did.

    Sequences of operations belong to a version of torch: under another one casts, dtypes and exponents are compared.
    """
    version = str(golden.machine("traces").get("torch", "")).split(".")[:2]
    whole = torch.__version__.split(".")[:2] == version

    def found() -> Iterator[tuple[str, list[str]]]:
        for key, row in golden.rows("traces").items():
            name, dtype = key.split()
            if name in _MODELS:
                yield key, apart(name, row, traced(name, DTYPES[dtype], "cpu"), whole=whole)

    return _judged(found(), known_here or {})


def silicon(golden: Golden, known_here: dict[str, str] | None = None) -> list[str]:
    """Return the operators whose emulation is farther from the GPU's results than it was on the day."""
    rows = golden.rows("silicon")

    def found() -> Iterator[tuple[str, list[str]]]:
        for key, row in rows.items():
            name, dtype, how = key.split(" | ")
            if how == "default" and dtype != "float32" and name in _OPERATORS:
                alone = name == _WHOLE and not _by_onednn(dtype)
                like = rows.get(f"{_STEPS} | {dtype} | {how}", row) if alone else row
                now, then = apart_now(name, dtype, row), like["apart"]["max"]
                yield key, [f"{now:g} roundings apart, {then:g} on the day"] if now > then + SLACK else []

    return _judged(found(), known_here or {})


def _by_onednn(dtype: str) -> bool:
    """Tell whether this CPU has oneDNN compute a recurrent layer as a whole."""
    ask = torch.ops.mkldnn
    return bool(ask._is_mkldnn_bf16_supported() if dtype == "bfloat16" else ask._is_mkldnn_fp16_supported())


def zoo(golden: Golden, names: Iterable[str], known_here: dict[str, str] | None = None) -> list[str]:
    """Return the cases whose verdict on this CPU is another one than on CUDA."""

    def found() -> Iterator[tuple[str, list[str]]]:
        for name in names:
            there = golden.rows("zoo")[name]["there"]
            here = judged(name, "cpu")
            yield (
                name,
                [f"{key}: {there.get(key)} on CUDA, {here.get(key)} here" for key in differs(there, here)],
            )

    return _judged(found(), known_here or {})


def _judged(found: Iterator[tuple[str, list[str]]], known_here: dict[str, str]) -> list[str]:
    """Return differences that are not known, and known ones that are no longer there."""
    wrong = []
    for key, differences in found:
        if differences and key not in known_here:
            wrong.append(f"{key}: {'; '.join(differences[:3])}")
        if not differences and key in known_here:
            wrong.append(f"{key}: known to differ, and does not")
    return wrong
