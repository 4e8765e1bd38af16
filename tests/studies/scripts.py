"""Real training scripts, unmodified: run bare and under `ampcheck run`, and what was found in each.

    python tests/studies/scripts.py FOLDER [NAME ...]    writes reports/scripts.md

FOLDER holds checkouts of the repositories under the names of the table, with the data that each script reads.
Lines that differ are counted after times and speeds have been taken out of them; a script that draws its seed from
the system prints other losses at every run, bare ones too, and is marked.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ampcheck.codec import read
from ampcheck.headline import verdict
from ampcheck.wording import plural

REPORT = Path(__file__).parents[2] / "reports" / "scripts.md"
#: Times, speeds and version numbers: what no two runs have in common.
# ruff: noqa: E501  command lines are as long as they are
_CHANGES = re.compile(
    r"time:? *[\d.]+ ?m?s?|\( *[\d.]+s?\)|[\d.]+ ?(?:ms|s|it/s|img/s)\b|[\d.]+ms/batch|ms/batch +[\d.]+|Time +[\d.]+"
    r"|Data +[\d.]+|SPS: \d+|iter_dt [\d.]+ms|eta: [\d:]+|img/s: [\d.]+|mfu [-\d.]+%|v_num: [\d.]+|\d+:\d\d:\d\d|Took [\d.e-]+"
    r"|time: [\d.]+|data: [\d.]+|0\.00it/s|\d{8}-\d{6}"
)


@dataclass(frozen=True)
class Case:
    """A script and how it is called."""

    name: str
    source: str  #: repository @ commit
    folder: str
    words: str
    seeded: bool = True
    options: str = ""  #: of ampcheck run
    path: str = ""  #: for PYTHONPATH
    bare: bool = True  #: it can run without ampcheck here


EXAMPLES, TV = "pytorch/examples @ 77f55b91", "jinensetpal/vision @ 3300692c"
_NANO = (
    "train.py config/train_shakespeare_char.py --eval_iters=2 --log_interval=1 --block_size=32 --batch_size=4 "
    "--n_layer=2 --n_head=2 --n_embd=32 --max_iters=8 --eval_interval=4 --lr_decay_iters=8 "
    "--gradient_accumulation_steps=2 --compile=False"
)
_TIMM = (
    "train.py --data-dir data --num-classes 4 -b 8 --epochs 1 --workers 1 --device cpu --log-interval 1 --seed 1 "
    "--img-size 64 --warmup-epochs 0 --no-prefetcher"
)
_TV = (
    "train.py --data-path data --device cpu -b 8 --epochs 1 -j 0 --print-freq 1 --val-resize-size 64 --val-crop-size 64 "
    "--train-crop-size 64 --model resnet18"
)
CASES = [
    Case("mnist", EXAMPLES, "examples/mnist", "main.py --epochs 1 --no-accel --log-interval 2"),
    Case(
        "mnist, what if fp16",
        EXAMPLES,
        "examples/mnist",
        "main.py --epochs 1 --no-accel --log-interval 2",
        options="--what-if fp16",
    ),
    Case(
        "dcgan",
        EXAMPLES,
        "examples/dcgan",
        "main.py --dataset fake --niter 1 --manualSeed 1 --batchSize 64 --ngf 8 --ndf 8 --workers 0 --outf . --dry-run",
    ),
    Case(
        "dcgan, what if fp16",
        EXAMPLES,
        "examples/dcgan",
        "main.py --dataset fake --niter 1 --manualSeed 1 --batchSize 64 --ngf 8 --ndf 8 --workers 0 --outf . --dry-run",
        options="--what-if fp16",
    ),
    Case("mnist_rnn", EXAMPLES, "examples/mnist_rnn", "main.py --epochs 1 --log-interval 1"),
    Case(
        "imagenet",
        EXAMPLES,
        "examples/imagenet",
        "main.py -a resnet18 -b 8 --epochs 1 -j 0 --no-accel -p 1 --seed 1 data",
    ),
    Case(
        "word language model",
        EXAMPLES,
        "examples/word_language_model",
        "main.py --epochs 1 --data data/tiny --emsize 32 --nhid 32 --bptt 16 --batch_size 8 --log-interval 4",
    ),
    Case(
        "super_resolution",
        EXAMPLES,
        "examples/super_resolution",
        "main.py --upscale_factor 4 --batchSize 4 --testBatchSize 4 --nEpochs 1 --threads 0",
    ),
    Case("regression", EXAMPLES, "examples/regression", "main.py", seeded=False),
    Case(
        "minGPT adder",
        "karpathy/minGPT @ 37baab71",
        "minGPT",
        "projects/adder/adder.py --trainer.max_iters=15 --trainer.batch_size=16 --trainer.num_workers=0",
        path=".",
    ),
    Case("nanoGPT, CPU", "karpathy/nanoGPT @ 3adf61e1", "nanoGPT", f"{_NANO} --device=cpu"),
    Case(
        "nanoGPT, CUDA in fp16",
        "karpathy/nanoGPT @ 3adf61e1",
        "nanoGPT",
        f"{_NANO} --device=cuda --dtype=float16",
        bare=False,
    ),
    Case(
        "U-Net --amp",
        "milesial/Pytorch-UNet @ 21d7850f",
        "unet",
        "train.py --epochs 1 --batch-size 2 --amp --scale 0.5 --validation 25 --bilinear",
        seeded=False,
    ),
    Case(
        "timm resnet10t fp16",
        "huggingface/pytorch-image-models @ aa4b5850",
        "timm",
        f"{_TIMM} --model resnet10t --img-size 32 --amp --clip-grad 1.0",
    ),
    Case(
        "timm ViT bf16, checkpointed",
        "huggingface/pytorch-image-models @ aa4b5850",
        "timm",
        f"{_TIMM} --model vit_tiny_patch16_224 --model-kwargs img_size=64 --amp --amp-dtype bfloat16 --grad-checkpointing --opt adamw --layer-decay 0.9",
    ),
    Case(
        "torchvision reference --amp --clip-grad-norm",
        TV,
        "tvbug/references/classification",
        f"{_TV} --amp --clip-grad-norm 1.0",
        seeded=False,
    ),
    Case(
        "Lightning bug report",
        "Lightning-AI/pytorch-lightning @ 7f0c3436",
        "pl/examples/pytorch/bug_report",
        "bug_report_model.py",
        seeded=False,
    ),
    Case(
        "CleanRL PPO",
        "vwxyzjn/cleanrl @ fe8d8a03",
        "cleanrl",
        "cleanrl/ppo.py --total-timesteps 2048 --no-cuda",
    ),
]


def run(root, case, words):
    path = os.pathsep.join([*filter(None, [case.path]), *sys.path[1:]])
    env = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root / case.folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    return done.returncode, [_CHANGES.sub("", line) for line in done.stdout.splitlines()]


def row(root, case, saved):
    """Return one line of the table."""
    options = [*case.options.split(), "--format", "json", "-o", str(saved)]
    status, printed = run(root, case, ["-m", "ampcheck", "run", *options, *case.words.split()])
    report = read(saved)
    bare = run(root, case, case.words.split()) if case.bare else None
    codes = sorted(
        {f"{finding.code} {finding.name}" for finding in report.findings if finding.severity != "info"}
    )
    loop = report.loop
    cells = [
        case.name,
        case.source,
        "needs CUDA" if bare is None else f"{bare[0]}, {status}",
        _compared(case, bare, printed),
        f"{loop.steps} ({len(loop.recorded)})",
        verdict(report).replace("|", "/"),
        ", ".join(codes) or "–",
    ]
    return "| " + " | ".join(cells) + " |"


def _compared(case, bare, printed):
    if bare is None:
        return "–"
    if not case.seeded:
        return "unseeded"
    if case.options:
        return "fp16 in recorded steps"
    differing = sum(a != b for a, b in zip(bare[1], printed, strict=False)) + abs(len(bare[1]) - len(printed))
    return (
        f"all {plural(len(printed), 'line')} equal"
        if not differing
        else f"{plural(differing, 'line')} differ"
    )


def main():
    root, wanted = Path(sys.argv[1]).absolute(), sys.argv[2:]
    rows = []
    for case in CASES:
        if not wanted or case.name in wanted:
            rows.append(row(root, case, root / "report.json"))
            print(rows[-1], flush=True)
    head = [
        "# Real scripts, unmodified",
        "",
        "`python tests/studies/scripts.py FOLDER`, on a machine without a GPU. Exit status bare and watched; lines of output, times",
        "taken out; steps, and how many were recorded in full; the verdict; findings that are no mere information.",
        "",
        "| script | from | exit | output | steps | verdict | found |",
        "|---|---|---|---|---|---|---|",
    ]
    if not wanted:
        REPORT.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
