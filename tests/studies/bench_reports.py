"""Remakes the reports of the bench: python tests/studies/bench_reports.py [NAME ...]; without names all of them.

`classic` are the three of the classic experiment and their table. `render` measures nothing: it writes every format
of the reports again from their JSON, and `predict` adds predicted times to the classic ones. --times takes the times
only, where a machine is quiet for some minutes, and --resume adds what is missing.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from ampcheck.bench import files, saved
from ampcheck.bench.confirmed import confirmation
from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.views import article
from ampcheck.cli import main
from ampcheck.renderers.markup import inline
from ampcheck.saved.report_json import write
from ampcheck.targets import Options, load

ROOT = Path(__file__).parents[2]
FOLDER = "reports/bench"
CLASSIC = "--precisions fp32,fp16,amp,bf16 --seeds 5 --budget 12 --margin 0.02 --gpu a100-80g,t4"
MODELS = "--seeds 3 --budget 40 --fits 16GiB"
REPORTS = {
    "classic_digits": f"tests/studies/bench/classic.py:digits --steps 80 {CLASSIC}",
    "classic_generated": f"tests/studies/bench/classic.py:generated --steps 60 {CLASSIC}",
    "classic_small_loss": f"tests/studies/bench/classic.py:small_loss --steps 80 {CLASSIC}",
    # Two by two pixels are left at the end of 64x64: batch norm then has 16 and 32 values to average.
    "resnet18": f"torchvision:resnet18 --input 3,64,64 --batch-sizes 4,8 --steps 10 {MODELS}",
    "vit": f"tests/studies/bench/vit.py --batch-sizes 4,16 --steps 20 {MODELS}",
    "gpt": f"transformers:gpt2 --small --batch-sizes 2,8 --steps 20 {MODELS}",
    "lstm": f"tests/studies/bench/lstm.py --batch-sizes 16,64 --steps 20 {MODELS}",
}


OPTIONS = {"--times": ("--parts", "time"), "--resume": ("--resume",)}
CLASSICS = ("classic_digits", "classic_generated", "classic_small_loss")
CLASSIC_TEXT = """\
# The classic experiment

A small CNN (two convolutions, two linear layers), Adam, batch 256, {steps} steps, {seeds} seeds: in FP32, in FP16
without loss scaling, in mixed precision with loss scaling (amp) and in BF16.

"""
CLASSIC_NOTES = """
- *digits*: scikit-learn's handwritten digits. *generated*: noisy pictures of 3x32x32. *small_loss*: the digits with a
  loss of 2^-17 of its size, whose gradients are zero in FP16 unless it is scaled.
- Accuracy follows CUDA's casting rules on CPU tensors; without a word it is equivalent to FP32's. Memory is predicted
  for CUDA: {memory}.
- ms a step and × speed are predicted, with the range that held most published ones ([how far off](speed.md)):
  {time}. So small a network waits for its launches; mixed precision has more of them and is no faster.
- Made by `python tests/studies/bench_reports.py classic`; `ampcheck bench FILE:TARGET --gpu {gpus} --view article`
  prints such a table of any target.

![Accuracy of small_loss against steps: without scaling it does not rise](classic_small_loss-1-metric.svg)
"""
CLASSIC_GPUS = ("a100-80g", "t4")


def classic(folder):
    """Write the table of the three classic reports: the layout of the article, with two GPUs."""
    benches = {name.removeprefix("classic_"): saved.read(folder / f"{name}.json") for name in CLASSICS}
    shown: list[list[str]] = []
    for name, bench in benches.items():
        titles, rows = article(bench)
        heads = [title.replace(", predicted", "").replace("CUDA ", "") for title in titles]
        shown = shown or [heads, [":--", *["--:"] * (len(titles) - 1)]]
        shown.append([f"[{name}](classic_{name}.md)", *[""] * (len(titles) - 1)])
        for row in rows:
            cells = (inline(cell.removesuffix(" (equivalent)")) for cell in row)
            shown.append([cell.replace(" ", "&nbsp;") for cell in cells])  # a line a row
    steps = sorted({int(re.search(r"--steps (\d+)", bench.command)[1]) for bench in benches.values()})
    seeds = sorted({len(row.courses) for bench in benches.values() for row in bench.cases[0].rows})
    text = CLASSIC_TEXT.format(steps=" to ".join(map(str, steps)), seeds=" to ".join(map(str, seeds)))
    text += "".join(f"| {' | '.join(row)} |\n" for row in shown)
    said = {"memory": confirmation("memory"), "time": confirmation("time"), "gpus": ",".join(CLASSIC_GPUS)}
    write(folder / "classic.md", text + CLASSIC_NOTES.format(**said))


def predict_times(folder, name):
    """Add predicted times to a report that is there; nothing of it is measured again."""
    bench = saved.read(folder / f"{name}.json")
    request = Request(tuple(row.precision for row in bench.cases[0].rows), ("memory",), gpus=CLASSIC_GPUS)
    target = REPORTS[name].split()[0]

    def make(size, seed):
        return load(target, Options(batch_size=size, seed=seed))

    (found,) = Bencher(make, request).run(Bench(bench.target)).cases
    (case,) = bench.cases
    rows = tuple(
        replace(
            row,
            gpu_times=found.row(row.precision).gpu_times,
            flops=found.row(row.precision).flops,
            message=found.row(row.precision).message or row.message,
        )
        for row in case.rows
    )
    gpus = f" --gpu {','.join(CLASSIC_GPUS)}"
    command = bench.command if gpus in bench.command else bench.command + gpus
    files.write_all(folder, name, replace(bench, cases=(replace(case, rows=rows),), command=command))


def remake(name, more=()):
    """Make one report, as a person would from the repository's folder."""
    words = ["bench", *REPORTS[name].split(), "-o", FOLDER, "--name", name, *more]
    return main(words)


def render(folder):
    """Write every format of the reports that are there."""
    for path in set(folder.glob("*.json")) - set(folder.glob("*.partial.json")):
        files.write_all(folder, path.stem, saved.read(path))


if __name__ == "__main__":
    os.chdir(ROOT)
    asked = [word for word in sys.argv[1:] if word not in OPTIONS] or [*REPORTS]
    more = [part for word in sys.argv[1:] if word in OPTIONS for part in OPTIONS[word]]
    for wanted in [*CLASSICS] if asked == ["classic"] else asked:
        if wanted == "predict":
            for name in CLASSICS:
                predict_times(Path(FOLDER), name)
        elif wanted == "render":
            render(Path(FOLDER))
        elif remake(wanted, more):
            sys.exit(f"{wanted} failed")
    if all((Path(FOLDER) / f"{name}.json").is_file() for name in CLASSICS):
        classic(Path(FOLDER))
    main(["bench", "--index", "reports"])
