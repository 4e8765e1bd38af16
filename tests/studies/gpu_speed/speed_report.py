"""Writes down how well predicted speed-ups agree with published ones: tables and a scatter plot."""

import statistics

from ampcheck.bench.shapes import LEFT, WIDTH, Axis, mark, standalone, svg
from ampcheck.renderers.page.elements import tag
from ampcheck.renderers.shapes import line, text

LOW, HIGH = 0.5, 6.0
TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 6)
KINDS = (("train", "fp32"), ("train", "tf32"), ("infer", "fp32"), ("infer", "tf32"))
TOP, BOTTOM, RIGHT = 30, 450, WIDTH - 20
ACROSS = Axis(LOW, HIGH, LEFT, RIGHT, logarithmic=True)
UP = Axis(LOW, HIGH, BOTTOM, TOP, logarithmic=True)
INTRO = """\
# Predicted speed-ups on named GPUs, against published ones

Made by `python tests/studies/gpu_speed/count.py PAIRS.csv CACHE`, which counts the operations of the rebuilt models
on tensors without storage, and `python tests/studies/gpu_speed/fit.py PAIRS.csv CACHE`, which fits {constants}
constants and scores them. No GPU was used: every published figure was measured by others. {rows} pairs of published
throughputs (same model, GPU and batch in FP32 or TF32 and in mixed precision; {sources}) can be rebuilt.

An error is |predicted / published - 1| of the speed-up. "Leave one GPU out" and "leave one family out" predict rows
by constants that were fitted without any row of their GPU or model family. "Sign right" counts published speed-ups
that differ from 1 by more than 5 %; the column beside it counts all. Where the publisher's script casts the whole
model to FP16 instead of using autocast (u39kun's, and NCF's inference), the rebuilt step has no casts either.

![predicted against published](speed.svg)

"""
LIMITS = """\
## Where it fails

- The same model differs by 14 % in the median between two sources, so no predictor does better across sources.
- 3-D networks: FP32 convolutions in three dimensions are up to five times slower than mixed precision on a V100,
  which no datasheet says. Left out of the fit, this family is underestimated.
- VGG16 in training, left out of the fit, is overestimated by {vgg_train}, in inference by {vgg_infer} (medians). Its
  FP32 convolutions run above the FP32 peak, by Winograd's algorithm, which the roofline knows. What is left is that the
  backward in FP16 of the cuDNN of that day (PyTorch 0.3, 2018) took {vgg_backward} times as long as the forward, where
  FP32's took {vgg_backward_fp32} times; no datasheet says that.
- BERT at the largest batches that fit is underestimated by a fifth; those rows took no part in the fit.
- Steps that wait for the host: the cost of a launch is the host's own, and one constant stands for all hosts.
- Not rebuilt, so not scored: Tacotron 2 and TFT (recurrent layers, of which a GPU makes kernels that are not seen
  here).
- Data loading, several GPUs, and torch.compile: no published pair checks them here.
- Most rows are inference of convolutional networks on V100, A100 and T4.
"""


def _percent(value):
    return f"{100 * value:.1f} %"


def _table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]) + "\n\n"


def to_markdown(rows, found, written, score, others):
    """Return the report."""
    sources = ", ".join(sorted({row["src"].partition("@")[0] for row in rows}))
    out = INTRO.format(constants=len(written["constants"]), rows=len(rows), sources=sources)
    out += "## Errors\n\n"
    lines = []
    for name, values in found.items():
        for mode in ("all", "train", "infer"):
            some = [at for at, row in enumerate(rows) if mode in {"all", row["mode"]}]
            lines.append((name, mode, *_cells(score([rows[at] for at in some], [values[at] for at in some]))))
    out += _table(
        ("predicted by", "mode", "rows", "median error", "90th percentile", "sign right", "of all rows"),
        lines,
    )
    family = written["scores"]["leave one family out"]
    out += f"The range printed with each prediction holds {_percent(family['covered'])} of the published speed-ups of "
    out += f"families that were left out ({_ranges(written)}).\n\n"
    for title, key in (("source", "src"), ("family", "family"), ("GPU", "gpu"), ("FP32 row", "base")):
        out += f"## By {title}, its family left out\n\n"
        lines = []
        for group in sorted({row[key] for row in rows}):
            some = [at for at, row in enumerate(rows) if row[key] == group]
            values = found["leave one family out"]
            lines.append((group, *_cells(score([rows[at] for at in some], [values[at] for at in some]))))
        out += _table((title, "rows", "median error", "90th percentile", "sign right", "of all rows"), lines)
    out += _unseen(score, *others)
    out += "## Constants\n\n" + _table(("constant", "value"), list(written["constants"].items()))
    return out + LIMITS.format(**_vgg(rows, found["leave one family out"]))


def _vgg(rows, values):
    """Return how far off VGG16 is, and what its published backward took beside its forward on Tensor Cores."""
    some = [(row, value) for row, value in zip(rows, values, strict=True) if row["family"] == "vgg16"]
    off = {
        mode: statistics.median(value / row["speedup"] - 1 for row, value in some if row["mode"] == mode)
        for mode in ("train", "infer")
    }
    times = {
        (row["gpu"], row["mode"], kind): row["bs_base"] / float(row[f"thr_{kind}"])
        for row, _ in some
        for kind in ("base", "amp")
        if row["gpu"].startswith(("Titan V", "V100"))
    }
    backward = {
        kind: statistics.median(
            times[gpu, "train", kind] / times[gpu, "infer", kind] - 1 for gpu in {key[0] for key in times}
        )
        for kind in ("base", "amp")
    }
    return {
        "vgg_train": _percent(off["train"]), "vgg_infer": _percent(off["infer"]),
        "vgg_backward": f"{backward['amp']:.1f}", "vgg_backward_fp32": f"{backward['base']:.1f}",
    }  # fmt: skip


def _unseen(score, rows, values):
    """Return the errors on rows that took no part in the fit."""
    if not rows:
        return ""
    out = "## Rows that took no part in the fit: another batch size in mixed precision than in FP32\n\n"
    out += "The speed-up is that of the samples per second. Most of these GPUs have no row in the fit.\n\n"
    for title, key in (("family", "family"), ("GPU", "gpu")):
        lines = []
        for group in ["all", *sorted({row[key] for row in rows})]:
            some = [at for at, row in enumerate(rows) if group in {"all", row[key]}]
            lines.append((group, *_cells(score([rows[at] for at in some], [values[at] for at in some]))))
        out += _table((title, "rows", "median error", "90th percentile", "sign right", "of all rows"), lines)
    return out


def _ranges(written):
    return "; ".join(f"{mode}: × {low} to × {high}" for mode, (low, high) in written["ranges"].items())


def _cells(found):
    sign = "–" if found["sign"] is None else _percent(found["sign"])
    return found["rows"], _percent(found["median"]), _percent(found["p90"]), sign, _percent(found["any_sign"])


def to_svg(rows, values):
    """Return the scatter plot."""
    parts = []
    for tick in TICKS:
        x, y = ACROSS(tick), UP(tick)
        parts += [line(x, TOP, x, BOTTOM, "grid"), line(LEFT, y, RIGHT, y, "grid")]
        parts += [text(x, BOTTOM + 18, f"{tick:g}", "middle"), text(LEFT - 8, y + 4, f"{tick:g}×", "end")]
    for factor in (1, 1.2, 1 / 1.2):
        low, high = max(LOW, LOW / factor), min(HIGH, HIGH / factor)
        style = "one" if factor == 1 else "one line1"
        parts.append(line(ACROSS(low), UP(low * factor), ACROSS(high), UP(high * factor), style))
    for row, value in zip(rows, values, strict=True):
        about = f"{row['model']}, {row['gpu']}, batch {row['bs_base']:g}, {row['mode']}"
        kind = KINDS.index((row["mode"], row["base"]))
        parts.append(
            tag("g", tag("title", about), mark(kind, ACROSS(row["speedup"]), UP(min(max(value, LOW), HIGH))))
        )
    for kind, (mode, base) in enumerate(KINDS):
        y = TOP + 16 + 18 * kind
        parts += [mark(kind, LEFT + 14, y - 4), text(LEFT + 26, y, f"{mode}, beside {base.upper()}")]
    parts.append(text(8, 16, "predicted speed-up, its model family left out; dashed: 20 % off", style="dim"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 38, "published speed-up", "middle", "dim"))
    return standalone(svg(BOTTOM + 46, "Predicted against published speed-ups", parts))
