"""Fits the roofline's constants to published speed-ups and scores what it predicts for others.

python tests/studies/gpu_speed/fit.py PAIRS.csv CACHE writes ampcheck/bench/roofline.json and reports/bench/speed.*;
with --report it writes only the report again, and scores the rows whose batch sizes differ.
"""

import csv
import json
import math
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from count import configurations, rebuilt
from scipy.optimize import least_squares
from speed_report import to_markdown, to_svg

from ampcheck.bench.ledger import Operation
from ampcheck.bench.roofline import Constants, gpu, step_time

ROOT = Path(__file__).parents[3]
GPUS = {
    "V100 16GB": "v100-sxm", "V100 32GB": "v100-sxm", "V100 32GB (DGX-2)": "v100-sxm", "T4": "t4",
    "V100 16GB SXM (p3)": "v100-sxm", "A100 80GB": "a100-80g", "A100 40GB": "a100-40g", "Titan V": "titan-v",
    "GTX 1080Ti": "gtx1080ti", "RTX 2080Ti": "rtx2080ti",
    # On these no row has one batch size.
    "RTX 3070": "rtx3070", "RTX 3080": "rtx3080", "RTX 3090": "rtx3090", "A40": "a40", "A10": "a10",
    "A100 80GB PCIe": "a100-pcie", "A100 80GB SXM": "a100-80g", "A100 40GB SXM": "a100-40g",
    "RTX A4000": "a4000", "RTX A4500": "a4500", "RTX A5000": "a5000", "RTX A5500": "a5500", "RTX A6000": "a6000",
    "Quadro RTX 5000": "rtx5000", "Quadro RTX 6000": "rtx6000", "Quadro RTX 8000": "rtx8000",
    "Titan RTX": "titan-rtx", "V100 16GB SXM": "v100-sxm", "V100 SXM (lambda)": "v100-sxm",
    "RTX 6000 Ada": "rtx6000ada", "RTX 4090": "rtx4090", "H100 80GB PCIe": "h100-pcie", "H100 80GB SXM": "h100",
    "H100 80GB SXM5": "h100", "H200 140GB SXM": "h200", "GH200 96GB": "gh200", "B200 192GB": "b200",
}  # fmt: skip
NAMES = [field.name for field in fields(Constants)]
START = Constants(0.5, 0.3, 0.6, 0.4, 0.1, 0.5, 0.85, 2.0, 8.0, 45.0, 0.4, 1.5)
LOW = Constants(0.1, 0.05, 0.2, 0.1, 0.01, 0.01, 0.4, 0.01, 0.5, 2.0, 0.1, 1.0)
#: Nothing exceeds a peak; Winograd's algorithm makes four multiplications of sixteen, for tiles of four by four.
HIGH = Constants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 6.0, 30.0, 80.0, 1.0, 4.0)
#: Throughputs steer the constants towards real milliseconds; speed-ups are what is scored.
THROUGHPUT_WEIGHT = 0.25
RANGE = (0.05, 0.95)
#: A speed-up this close to 1 is neither faster nor slower: the same run differs by as much between sources.
SAME = 0.05


def load(pairs, cache, *, same_batch=True):
    """Return the published rows that can be rebuilt, each with the operations of both of its runs."""
    known, out = {}, []
    for row in csv.DictReader(pairs.open(encoding="utf-8")):
        if not rebuilt(row) or row["gpu"] not in GPUS or (row["same_batch"] == "1") != same_batch:
            continue
        if not all((cache / what.file).exists() for what in configurations(row)):
            continue
        for what in configurations(row):
            if what.file not in known:
                ops = json.loads((cache / what.file).read_text())
                lists = [{k: tuple(v) if isinstance(v, list) else v for k, v in op.items()} for op in ops]
                known[what.file] = Work([Operation(**op) for op in lists])
        base, low = (known[what.file] for what in configurations(row))
        numbers = {name: float(row[name]) for name in ("speedup", "bs_base", "bs_amp", "thr_base")}
        out.append({**row, **numbers, "card": GPUS[row["gpu"]], "base_work": base, "low_work": low})
    return out


def merged_by_shape(ops):
    """Return operations of one shape as one: the roofline of their sum is the sum of theirs."""
    sums = {}
    for op in ops:
        calls = max(op.calls, 1)
        kind = (op.op, op.phase, op.dtype, op.product, op.cast, op.layout, op.winograd)
        key = (*kind, op.flops / calls, op.bytes / calls)
        sums.setdefault(key, []).append(op)
    numbers = ("calls", "flops", "bytes", "kernels", "chained")
    totals = [{name: sum(getattr(op, name) for op in same) for name in numbers} for same in sums.values()]
    return [replace(same[0], **total) for same, total in zip(sums.values(), totals, strict=True)]


class Work:
    """The operations of a step as arrays: the roofline of the package, fast enough to be fitted."""

    def __init__(self, ops):
        ops = self.ops = merged_by_shape(ops)
        numbers = np.array([(op.flops, op.bytes, op.kernels) for op in ops], float)
        self.flops, self.bytes, self.kernels = numbers.T
        products = [op.product or (1, 1, 8, 1) for op in ops]
        self.conv = np.array([op.op.startswith("convolution") for op in ops])
        self.grouped = self.conv & np.array([product[0] > 1 for product in products])
        self.depthwise = self.grouped & np.array([product[2] == 1 for product in products])
        self.low = np.array([op.dtype in {"float16", "bfloat16"} for op in ops])
        self.contiguous = np.array([op.layout.startswith("contiguous") for op in ops])
        self.winograd = np.array([op.winograd for op in ops])
        self.bare = np.array([op.cast or op.phase != "forward" for op in ops])

    def seconds(self, card, known, *, tf32):
        """Return the predicted seconds."""
        tensor = np.where(self.low, card.half > 0 and ~self.depthwise, tf32 and card.tf32 > card.fp32)
        peak = np.where(tensor, np.where(self.low, card.half, card.tf32), card.fp32)
        plain = np.where(self.winograd, known.convolution * known.winograd, known.convolution)
        conv = np.where(tensor, known.tensor_convolution, plain)
        grouped = np.where(tensor, known.tensor_grouped, known.grouped)
        product = np.where(tensor, known.tensor_product, known.product)
        share = np.where(self.grouped, grouped, np.where(self.conv, conv, product))
        extra = np.where(tensor & self.contiguous & (self.flops > 0), known.transpose, 0.0)
        memory = self.bytes * (1 + extra) / (card.bandwidth * known.bandwidth)
        halved = tensor & self.low
        rate = np.where(halved, np.minimum(peak, card.full * share), peak * share)
        device = np.maximum(self.flops / rate, memory) + self.kernels * known.kernel * 1e-6
        own = np.where(self.bare, known.bare_launch, 1.0)
        host = np.sum(self.kernels * own) * known.launch * 1e-6
        return max(float(device.sum()), float(host))


def predicted(row, known):
    """Return the predicted seconds of the base and of the mixed run."""
    card, tf32 = gpu(row["card"]), row["base"] == "tf32"
    return tuple(row[work].seconds(card, known, tf32=tf32) for work in ("base_work", "low_work"))


def _residuals(logs, rows, weights):
    known, out = Constants(*np.exp(logs)), []
    for row, weight in zip(rows, weights, strict=True):
        base, low = predicted(row, known)
        out.append(weight * math.log(base / low / row["speedup"]))
        counts = row["family"] not in {"nnunet", "bert"}  # whose throughput is not in the batch's samples
        out.append(weight * THROUGHPUT_WEIGHT * math.log(row["bs_base"] / base / row["thr_base"]) * counts)
    return np.array(out)


def fit(rows, start=START):
    """Return the constants that fit rows best; a cell of many rows weighs less than as many cells."""
    cells = Counter((row["family"], row["card"], row["mode"]) for row in rows)
    weights = [cells[row["family"], row["card"], row["mode"]] ** -0.25 for row in rows]
    first, low, high = (np.log([getattr(one, name) for name in NAMES]) for one in (start, LOW, HIGH))
    found = least_squares(
        _residuals, np.clip(first, low + 1e-6, high - 1e-6), bounds=(low, high), args=(rows, weights),
        loss="soft_l1", f_scale=0.15, diff_step=1e-3, max_nfev=10,
    )  # fmt: skip
    return Constants(*(float(value) for value in np.exp(found.x)))


def speedup(row, known):
    """Return the predicted speed-up."""
    base, low = predicted(row, known)
    return base / low * row["bs_amp"] / row["bs_base"]


def left_out(rows, key, start):
    """Return the predictions for each group of rows by constants that were fitted without it."""
    out = {}
    for group in sorted({row[key] for row in rows}):
        known = fit([row for row in rows if row[key] != group], start)
        out |= {id(row): speedup(row, known) for row in rows if row[key] == group}
        print(f"without {group}: done", flush=True)
    return [out[id(row)] for row in rows]


def baselines(rows):
    """Return what two constants predict for a family that they have not seen: one for all, one by mode and class."""
    one, two = [], []
    for row in rows:
        others = [other for other in rows if other["family"] != row["family"]]
        alike = [o["speedup"] for o in others if (o["mode"], o["base"]) == (row["mode"], row["base"])]
        one.append(float(np.median([other["speedup"] for other in others])))
        two.append(float(np.median(alike)) if alike else one[-1])
    return one, two


def score(rows, found):
    """Return the errors of predictions, by number."""
    truth, found = np.array([row["speedup"] for row in rows]), np.array(found)
    error, clear = np.abs(found / truth - 1), np.abs(truth - 1) > SAME
    sign = (found > 1) == (truth > 1)
    return {
        "rows": len(rows), "median": float(np.median(error)), "p90": float(np.quantile(error, 0.9)),
        "sign": float(sign[clear].mean()) if clear.any() else None, "any_sign": float(sign.mean()),
    }  # fmt: skip


def ranges(rows, found):
    """Return by mode the factors that hold most published speed-ups, and how many they hold of families left out."""
    logs = [math.log(row["speedup"] / value) for row, value in zip(rows, found, strict=True)]

    def ends(mode, without=None):
        some = [
            log for log, row in zip(logs, rows, strict=True)
            if row["mode"] == mode and row["family"] != without
        ]  # fmt: skip
        low, high = np.quantile(some, RANGE)
        return min(float(low), 0.0), max(float(high), 0.0)

    held = [
        ends(row["mode"], row["family"])[0] <= log <= ends(row["mode"], row["family"])[1]
        for log, row in zip(logs, rows, strict=True)
    ]
    factors = {mode: [round(math.exp(end), 3) for end in ends(mode)] for mode in ("train", "infer")}
    return factors, float(np.mean(held))


def check(rows, known):
    """Hold the arrays equal to the package's own roofline."""
    for row in rows[::7]:
        card, tf32 = gpu(row["card"]), row["base"] == "tf32"
        for work in ("base_work", "low_work"):
            plain = step_time(row[work].ops, card, known, tf32=tf32).seconds
            assert math.isclose(plain, row[work].seconds(card, known, tf32=tf32), rel_tol=1e-9)


def main(pairs, cache):
    """Fit, score, write."""
    rows = load(pairs, cache)
    known = fit(rows)
    check(rows, known)
    print(known, flush=True)
    found = {
        "fitted on all rows": [speedup(row, known) for row in rows],
        "leave one GPU out": left_out(rows, "card", known),
        "leave one family out": left_out(rows, "family", known),
    }
    constant, by_class = baselines(rows)
    found |= {"one constant": constant, "median by mode and FP32 or TF32": by_class}
    factors, covered = ranges(rows, found["leave one family out"])
    scores = {name: score(rows, values) for name, values in found.items()}
    scores["leave one family out"]["covered"] = covered
    rounded = {name: float(f"{getattr(known, name):.4g}") for name in NAMES}
    written = {
        "constants": rounded, "ranges": factors,
        "scores": {"rows": len(rows)} | {
            name: {k: v if k == "rows" else round(v, 4) for k, v in values.items()} for name, values in scores.items()
        },
    }  # fmt: skip
    (ROOT / "ampcheck/bench/roofline.json").write_text(json.dumps(written, indent=1) + "\n")
    plain = [{k: v for k, v in row.items() if not k.endswith("_work")} for row in rows]
    (cache / "found.json").write_text(json.dumps({"rows": plain, "found": found}))
    report(pairs, cache)


def report(pairs, cache):
    """Write what was found, with the rows that took no part: other batch sizes, most of them on other GPUs."""
    done = json.loads((cache / "found.json").read_text())
    written = json.loads((ROOT / "ampcheck/bench/roofline.json").read_text())
    others = load(pairs, cache, same_batch=False)
    known = Constants(**written["constants"])
    unseen = [speedup(row, known) for row in others]
    folder = ROOT / "reports/bench"
    family = done["found"]["leave one family out"]
    (folder / "speed.svg").write_text(to_svg([*done["rows"], *others], [*family, *unseen]))
    (folder / "speed.md").write_text(
        to_markdown(done["rows"], done["found"], written, score, (others, unseen))
    )


if __name__ == "__main__":
    (report if "--report" in sys.argv else main)(Path(sys.argv[1]), Path(sys.argv[2]))
