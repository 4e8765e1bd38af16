"""Remakes the reports of the bench: python tests/studies/bench_reports.py [NAME ...]; without names all of them.

`classic` are the three of the classic experiment and their table. `render` measures nothing: it writes every format
of the reports again from their JSON. --times takes the times only, where a machine is quiet for some minutes, and
--resume adds what is missing.
"""

import os
import sys
from pathlib import Path

from ampcheck.bench import files, saved
from ampcheck.bench.markdown import escaped
from ampcheck.bench.table import lines
from ampcheck.cli import main
from ampcheck.codec import write

ROOT = Path(__file__).parents[2]
FOLDER = "reports/bench"
CLASSIC = "--precisions fp32,fp16,amp,bf16 --seeds 3 --budget 12 --margin 0.02"
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

A small CNN (two convolutions, two linear layers), Adam, batch 256, 60 to 80 steps, three seeds: in FP32, in FP16
without loss scaling, and in mixed precision with loss scaling. Made by `python tests/studies/bench_reports.py classic`.
Time is this CPU's own and says nothing about a GPU; memory is predicted for CUDA; accuracy follows CUDA's casting
rules on CPU tensors. *digits*: scikit-learn's handwritten digits. *generated*: noisy pictures of 3x32x32.
*small_loss*: the digits with a loss of 2^-17 of its size, whose gradients are zero in FP16 unless it is scaled.

| experiment | precision | step here, ms | × as fast here | CUDA peak, MiB | × memory | accuracy | verdict |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def classic(folder):
    """Write the table of the three classic reports."""
    rows = []
    for name in CLASSICS:
        bench = saved.read(folder / f"{name}.json")
        for line in lines(bench, bench.cases[0]):
            cells = (
                line.precision,
                line.step,
                line.speedup,
                line.memory,
                line.share,
                line.training,
                line.verdict,
            )
            link = f"[{name.removeprefix('classic_')}]({name}.md)"
            rows.append("| " + " | ".join((link, *map(escaped, cells))) + " |\n")
    write(folder / "classic.md", CLASSIC_TEXT + "".join(rows))


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
        if wanted == "render":
            render(Path(FOLDER))
        elif remake(wanted, more):
            sys.exit(f"{wanted} failed")
    if all((Path(FOLDER) / f"{name}.json").is_file() for name in CLASSICS):
        classic(Path(FOLDER))
    main(["bench", "--index", "reports"])
