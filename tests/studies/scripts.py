"""Real training scripts, unmodified: run bare and under `ampcheck run`, and what was found in each.

    python tests/studies/scripts.py FOLDER [NAME ...]    writes reports/scripts.md, or the rows NAMEd in it

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

from ampcheck.saved.report_json import read
from ampcheck.values.wording import plural

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
    env: str = ""
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
PTGAN, ACCELERATE = "eriklindernoren/PyTorch-GAN @ 36d3c77", "huggingface/accelerate @ 16cb6eb8"
DIFFUSERS, PL = "huggingface/diffusers @ 58eb52c0", "Lightning-AI/pytorch-lightning @ 7f0c3436"
_FF = "main.py --epochs 3 --no_accel --train_size 64 --test_size 32"
CLIP = "mlfoundations/open_clip @ 89fb801"
_CLIP = (
    "-m open_clip_train.main --dataset-type synthetic --train-num-samples 8 --batch-size 2 --workers 0 --epochs 1 "
    "--model ViT-S-32-alt --warmup 1 --lr 1e-4 --logs none"
)
_UNCONDITIONAL = (
    "train_unconditional.py --train_data_dir imgs --model_config_name_or_path cfg --resolution 16 --train_batch_size 4 "
    "--num_epochs 1 --dataloader_num_workers 0 --output_dir out --save_images_epochs 100 --save_model_epochs 100 "
    "--use_ema --gradient_accumulation_steps 2 --logger tensorboard --ddpm_num_inference_steps 2"
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
    Case("vae", EXAMPLES, "examples/vae", "main.py --epochs 1 --log-interval 1 --no-accel"),
    Case(
        "time_sequence_prediction (LBFGS)",
        EXAMPLES,
        "examples/time_sequence_prediction",
        "train.py --steps 1",
        env="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
    ),
    Case("gat", EXAMPLES, "examples/gat", "main.py --epochs 2 --no-accel"),
    Case(
        "word language model, Transformer",
        EXAMPLES,
        "examples/word_language_model",
        "main.py --epochs 1 --data data/tiny --model Transformer --nhead 2 --emsize 32 --nhid 32 --bptt 16 "
        "--batch_size 8 --log-interval 4",
    ),
    Case(
        "siamese_network", EXAMPLES, "examples/siamese_network", "main.py --no-accel --dry-run", seeded=False
    ),
    Case(
        "mnist_hogwild",
        EXAMPLES,
        "examples/mnist_hogwild",
        "main.py --num-processes 2 --dry-run",
        seeded=False,
    ),
    Case("forward-forward", EXAMPLES, "examples/mnist_forward_forward", _FF, seeded=False),
    Case(
        "DDP tutorial, one GPU",
        EXAMPLES,
        "examples/distributed/ddp-tutorial-series",
        "single_gpu.py 2 1",
        bare=False,
    ),
    Case("GAN", PTGAN, "ptgan/implementations/gan", "gan.py --n_epochs 1", options="--as-cuda", bare=False),
    Case(
        "WGAN-GP",
        PTGAN,
        "ptgan/implementations/wgan_gp",
        "wgan_gp.py --n_epochs 1",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "accelerate nlp_example, bf16",
        ACCELERATE,
        "accelerate/examples",
        "nlp_example.py --mixed_precision bf16 --cpu",
    ),
    Case(
        "accelerate nlp_example, fp16",
        ACCELERATE,
        "accelerate/examples",
        "nlp_example.py --mixed_precision fp16",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "diffusers train_unconditional, bf16",
        DIFFUSERS,
        "diffusers/examples/unconditional_image_generation",
        f"{_UNCONDITIONAL} --mixed_precision bf16",
        env="ACCELERATE_USE_CPU=true",
    ),
    Case(
        "diffusers train_unconditional, fp16",
        DIFFUSERS,
        "diffusers/examples/unconditional_image_generation",
        f"{_UNCONDITIONAL} --mixed_precision fp16",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "Fabric image classifier, bf16",
        PL,
        "pl/examples/fabric/image_classifier",
        "train_fabric.py --epochs 1 --log-interval 2",
        env="LT_CLI_USED=1 LT_ACCELERATOR=cpu LT_DEVICES=1 LT_PRECISION=bf16-mixed",
    ),
    Case(
        "Fabric image classifier, fp16",
        PL,
        "pl/examples/fabric/image_classifier",
        "train_fabric.py --epochs 1 --log-interval 2",
        options="--as-cuda",
        env="LT_CLI_USED=1 LT_ACCELERATOR=cuda LT_DEVICES=1 LT_PRECISION=16-mixed",
        bare=False,
    ),
    Case(
        "Determined mnist_pytorch",
        "determined-ai/determined @ c1e9c6d7",
        "det/examples/tutorials/mnist_pytorch",
        "train.py --batches 8",
    ),
    Case(
        "LSTM on MNIST, what if bf16",
        "yunjey/pytorch-tutorial @ 0500d3d",
        "yunjey/tutorials/02-intermediate/recurrent_neural_network",
        "main.py",
        seeded=False,
        options="--what-if bf16",
    ),
    *(
        Case(
            f"torchvision reference at {commit[:8]}",
            f"jinensetpal/vision @ {commit}",
            f"tvc/{commit}/references/classification",
            f"{_TV.replace('--device cpu ', '')} --amp --clip-grad-norm 1.0",
            bare=False,
        )
        for commit in ("3300692c", "031e129b", "1de53bef", "3b5e6fc4")
    ),
    Case(
        "torchvision segmentation reference --amp",
        "jinensetpal/vision @ 3b5e6fc4",
        "tvc/3b5e6fc4/references/segmentation",
        "train.py --data-path ../../../voc --dataset voc --model lraspp_mobilenet_v3_large -b 4 --epochs 1 -j 0 "
        "--print-freq 1 --amp",
        bare=False,
    ),
    Case(
        "dino --use_fp16",
        "facebookresearch/dino @ 7c446df",
        "dino",
        "main_dino.py --arch vit_tiny --data_path data/train --epochs 1 --warmup_epochs 0 --batch_size_per_gpu 2 --out_dim 128 "
        "--local_crops_number 2 --num_workers 1 --use_fp16 true --output_dir . --dist_url env://",
        options="--as-cuda",
        env="TORCH_HOME=../hub RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        bare=False,
    ),
    Case("open_clip --precision amp", CLIP, "open_clip", f"{_CLIP} --precision amp", path="src", bare=False),
    Case(
        "open_clip --precision amp_bf16, accumulated",
        CLIP,
        "open_clip",
        f"{_CLIP} --precision amp_bf16 --device cpu --grad-clip-norm 1.0 --accum-freq 2",
        path="src",
    ),
    Case(
        "YOLOv5",
        "ultralytics/yolov5 @ 5081342f",
        "yolov5",
        "train.py --weights= --cfg models/yolov5n.yaml --data yolo.yaml --epochs 1 --batch-size 4 --imgsz 64 --workers 0 "
        "--noplots --device cpu --seed 1 --project runs",
        env="YOLOv5_AUTOINSTALL=false YOLOV5_CONFIG_DIR=../ultra",
        seeded=False,
    ),
    Case(
        "barlowtwins (spawned)",
        "facebookresearch/barlowtwins @ 8e8d284",
        "barlowtwins",
        "main.py data --workers 0 --epochs 1 --batch-size 4 --projector 64-64 --print-freq 1",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "lightweight-gan --amp (two scalers)",
        "lucidrains/lightweight-gan @ efbec45",
        "lightweight-gan",
        "-c __import__('lightweight_gan.cli').cli.main() --data imgs --amp --image-size 32 --num-train-steps 4 --batch-size 2 "
        "--gradient-accumulate-every 2 --fmap-max 16 --new --num-workers 0 --seed 1",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "Fabric reinforcement learning",
        PL,
        "pl/examples/fabric/reinforcement_learning",
        "train_fabric.py --num-envs 2 --num-steps 16 --total-timesteps 128 --per-rank-batch-size 8 --update-epochs 1",
        env="LT_CLI_USED=1 LT_ACCELERATOR=cpu LT_DEVICES=1 LT_PRECISION=bf16-mixed",
    ),
    Case(
        "accelerate gradient_accumulation, bf16",
        ACCELERATE,
        "accelerate/examples",
        "gradient_accumulation.py --cpu --mixed_precision bf16 --gradient_accumulation_steps 2",
    ),
    Case(
        "accelerate checkpointing, fp16",
        ACCELERATE,
        "accelerate/examples",
        "checkpointing.py --mixed_precision fp16 --checkpointing_steps epoch --output_dir checkpoints",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "torchvision detection reference --amp",
        "jinensetpal/vision @ 3b5e6fc4",
        "tvc/3b5e6fc4/references/detection",
        "train.py --data-path coco --dataset coco --model fasterrcnn_mobilenet_v3_large_320_fpn --amp -b 2 -j 0 --epochs 1 "
        "--print-freq 1",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "imagenet, spawned",
        EXAMPLES,
        "examples/imagenet",
        "main.py -a resnet18 -b 8 --epochs 1 -j 0 -p 1 --seed 1 --dist-url tcp://127.0.0.1:29544 "
        "--multiprocessing-distributed --world-size 1 --rank 0 data",
        options="--as-cuda",
        bare=False,
    ),
    Case(
        "DDP tutorial, spawned",
        EXAMPLES,
        "examples/distributed/ddp-tutorial-series",
        "multigpu.py 2 1",
        options="--as-cuda",
        bare=False,
    ),
]


def run(root, case, words):
    path = os.pathsep.join([*filter(None, [case.path]), *sys.path[1:]])
    env = {**os.environ, "PYTHONPATH": path, "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    env |= dict(pair.split("=", 1) for pair in case.env.split())
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
        report.verdict.sentence.replace("|", "/"),
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
    if differing:
        return f"{plural(differing, 'line')} differ"
    return f"all {plural(len(printed), 'line')} equal" if printed else "prints nothing"


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
    if wanted:
        made = {row.split(" | ")[0]: row for row in rows}
        kept = REPORT.read_text(encoding="utf-8").splitlines()[len(head) :]
        rows = [made.pop(row.split(" | ")[0], row) for row in kept] + list(made.values())
    REPORT.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
