"""Stage a: golden traces of the models on CUDA, each compared at once with the emulation on the same machine."""

from collections.abc import Iterator
from functools import partial

import torch

from settling.keep import Row
from settling.models import MAKERS
from settling.plan import Scope
from settling.tracing import apart, farthest, traced
from settling.work import Job

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_SMALL = ("mlp", "cnn_batch_norm", "decoder_by_hand")


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield a row for each model and dtype."""
    for dtype in DTYPES:
        for maker in MAKERS:
            name = maker.__name__
            if not scope.small or (name in _SMALL and dtype == "float16"):
                yield Job(f"{name} {dtype}", partial(row, name, dtype, scope.device))


def row(name: str, dtype: str, device: str) -> Row:
    """Return the trace, and what the emulation does otherwise."""
    found, here = traced(name, DTYPES[dtype], device), traced(name, DTYPES[dtype], "cpu")
    return found | {"differences": apart(name, found, here, whole=True), "moved": farthest(found, here)}
