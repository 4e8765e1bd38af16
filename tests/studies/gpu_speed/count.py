"""Counts the operations of published models and keeps them: python tests/studies/gpu_speed/count.py PAIRS.csv CACHE.

A file for each model, batch size, mode, dtype and layout; what is there is not counted again.
"""

import csv
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from published_models import build

from ampcheck.bench.result import Case
from ampcheck.bench.running.precisions import Precision
from ampcheck.bench.running.predict import predict
from ampcheck.bench.running.settings import put

REBUILT = {
    "efficientnet",
    "resnet50",
    "resnext",
    "se-resnext",
    "ssd",
    "bert",
    "ncf",
    "nnunet",
    "vgg16",
    "densenet161",
}
#: Models whose largest batches were measured, larger ones in mixed precision, on GPUs that no other row has.
TWO_SIZES = {"bert", "resnet50"}
#: Rows whose script casts the whole model to FP16, whatever the table calls it: NCF's inference.py --fp16.
HALVED = {("ncf", "infer")}
#: Batch sizes from which the operations at others are worked out; sizes that no width of a model is a multiple of.
STRETCHED = {"bert": (10, 30), "resnet50": (8, 24)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What was run: everything that the operations depend on."""

    model: str
    batch: int
    mode: str
    dtype: str
    channels_last: bool
    pure: bool = False

    @property
    def file(self):
        """Return the name of its file."""
        flags = f"{int(self.channels_last)}-{int(self.pure)}"
        return f"{self.model}-{self.batch}-{self.mode}-{self.dtype}-{flags}.json".replace(":", "_")


def configurations(row):
    """Return the base and the mixed configuration of a published row."""
    pure = row["amp"] == "fp16-pure" or (row["family"], row["mode"]) in HALVED
    low = "bfloat16" if "bf16" in row["amp"] else "float16"
    runs = (("float32", "bs_base", "cl_base"), (low, "bs_amp", "cl_amp"))
    return tuple(
        Configuration(row["model"], int(row[size]), row["mode"], dtype, row[layout] == "1", pure)
        for dtype, size, layout in runs
    )


def rebuilt(row):
    """Tell whether a row can be rebuilt: at one batch size, or at two for the models that are published so."""
    same = row["same_batch"] == "1" and row["family"] in REBUILT
    return (same or row["family"] in TWO_SIZES) and row["bs_base"].isdecimal() and row["bs_amp"].isdecimal()


def counted(what):
    """Return the operations of a configuration."""
    from ampcheck.targets.seeding import seeded

    def make():
        with seeded(0):
            target = build(what.model, what.batch, optimizer=not what.pure)
        return put(target, Case(what.batch, what.mode, channels_last=what.channels_last))

    low = None if what.dtype == "float32" else getattr(torch, what.dtype)
    chosen = Precision("amp", weights=low) if what.pure else Precision("amp", low)
    return predict(make, chosen, train=what.mode == "train")


def stretched(what, family, cache):
    """Return the operations at a batch size from those at two others: everything in them is linear in the batch."""
    (one, small), (two, large) = (
        (size, read(replace(what, batch=size), cache)) for size in STRETCHED[family]
    )
    if [op["op"] for op in small] != [op["op"] for op in large]:
        raise SystemExit(f"{what.file}: the operations change with the batch")
    share = (what.batch - one) / (two - one)

    def between(a, b):
        if isinstance(a, list):
            return [between(x, y) for x, y in zip(a, b, strict=True)]
        return round(a + share * (b - a)) if type(a) is int else a

    return [{key: between(a[key], b[key]) for key in a} for a, b in zip(small, large, strict=True)]


def read(what, cache):
    """Return the operations of a configuration, counted now where they are not there."""
    path = cache / what.file
    if not path.exists():
        begun = time.time()
        found = counted(what)
        path.write_text(json.dumps([asdict(op) | {"layer": ""} for op in found.work]))
        print(f"{what.file} {time.time() - begun:.1f} s {found.note}", flush=True)
    return json.loads(path.read_text())


def main(pairs, cache):
    """Count what is missing; where the two batches differ, from two small ones."""
    cache.mkdir(parents=True, exist_ok=True)
    rows = [row for row in csv.DictReader(pairs.open(encoding="utf-8")) if rebuilt(row)]
    for what in dict.fromkeys(
        what for row in rows for what in configurations(row) if row["same_batch"] == "1"
    ):
        read(what, cache)
    for row in rows:
        for what in configurations(row):
            if not (cache / what.file).exists():
                (cache / what.file).write_text(json.dumps(stretched(what, row["family"], cache)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
