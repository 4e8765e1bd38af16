"""Is a step the same with the recorder and without it? For many models: `python tests/helpers/transparency.py`.

Four runs of one step from one state: bare, recorded, and both again under CUDA's casting rules in fp16.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from witness import (
    bits,
    installed,
    left_behind,
    model_bits,
    module_hooks_of,
    random_bits,
    seed,
    tensors,
)

from ampcheck.observe.cuda_on_cpu.wide import WideCompute, execute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import casting_rules
from ampcheck.targets import Options, load
from ampcheck.targets.spec import Target

SMALL = {"batch_size": 2, "input_shape": (3, 64, 64), "small": True}
_VISION = """
alexnet vgg11_bn resnet18 resnet50 resnext50_32x4d densenet121 squeezenet1_1 mobilenet_v2 mobilenet_v3_small
mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 efficientnet_v2_s regnet_y_400mf convnext_tiny googlenet swin_t
swin_v2_t fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large ssdlite320_mobilenet_v3_large
"""
_TIMM = """
resnet10t convnext_atto mobilevit_xxs ghostnet_100 nf_resnet26 tf_efficientnet_lite0 poolformer_s12 levit_128s
vit_tiny_patch16_224 mixer_s32_224 xcit_nano_12_p16_224 eva02_tiny_patch14_224
"""
_TRANSFORMERS = """
bert roberta distilbert albert electra deberta-v2 gpt2 llama mistral opt bloom gpt_neox mamba t5 bart
vit segformer whisper clip
"""
#: A few of each kind, for every test run.
_REPRESENTATIVE = """
torchvision:resnet18 torchvision:mobilenet_v3_small torchvision:densenet121 torchvision:googlenet
timm:convnext_atto timm:nf_resnet26 timm:mobilevit_xxs transformers:bert transformers:llama transformers:t5
transformers:mamba transformers:clip
"""
_FIXED_SIZE = """
levit_128s vit_tiny_patch16_224 mixer_s32_224 xcit_nano_12_p16_224 eva02_tiny_patch14_224
"""
REPRESENTATIVE = _REPRESENTATIVE.split()
FIXED_SIZE = frozenset(_FIXED_SIZE.split())
ALL = [
    *(f"torchvision:{name}" for name in _VISION.split()),
    *(f"timm:{name}" for name in _TIMM.split()),
    *(f"transformers:{name}" for name in _TRANSFORMERS.split()),
]


def options(spec: str) -> Options:
    kind, _, name = spec.partition(":")
    if kind == "transformers":
        return Options(batch_size=2, small=True)
    if name in FIXED_SIZE or name.startswith("ssd"):
        return Options(batch_size=2)
    return Options(**SMALL)


@contextmanager
def plain() -> Iterator[None]:
    yield


@contextmanager
def low() -> Iterator[None]:
    with casting_rules(torch.device("cpu"), torch.float16):
        yield


def step(
    target: Target, rules: AbstractContextManager[None], mode: Any, dtype: torch.dtype | None
) -> dict[str, Any]:
    """Return the bits of everything one step leaves behind."""
    region = torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()
    outputs: list[Any] = []
    hook = target.model.register_forward_hook(
        lambda _, __, out: outputs.extend(
            bits(t) for t in tensors(dict(out) if hasattr(out, "items") else out)
        )
    )
    try:
        with rules, mode:
            with region:
                loss = target.loss(target.model, target.batch(0))
            (loss * 1024.0).backward()
    finally:
        hook.remove()
    found = {"loss": bits(loss), "outputs": outputs, "random": random_bits()}
    return found | model_bits(target.model)


def differences(target: Target) -> tuple[list[str], int, int]:
    """Return what differs with the recorder, how many values were compared, and the operations recorded."""
    before = Snapshot(target.model, target.batch(0))
    runs: list[tuple[Callable[[], Any], Callable[[], Any], Any, Any]] = [
        (plain, nullcontext, lambda: Recorder(target.model, samples=16), None),
        (low, WideCompute, lambda: Recorder(target.model, samples=16, execute=execute), torch.float16),
    ]
    wrong, compared, operations = [], 0, 0
    for rules, bare, recorded, dtype in runs:
        found = []
        recorder = recorded()
        for mode in (bare(), recorder):
            before.restore()
            seed()
            found.append(step(target, rules(), mode, dtype))
        operations += recorder.trace(recorder.fetch()).operations
        wrong += [f"{name} ({dtype or 'fp32'})" for name in found[0] if found[0][name] != found[1].get(name)]
        compared += len(found[0]) + len(found[0]["outputs"])
    before.restore()
    return wrong, compared, operations


def row(spec: str) -> str:
    target = load(spec, options(spec))
    hooks, things = module_hooks_of(target.model), installed()
    wrong, compared, operations = differences(target)
    left = left_behind(things, installed())
    left += [name for name, count in module_hooks_of(target.model).items() if count != hooks[name]]
    said = [spec, str(operations), str(compared), ", ".join(wrong) or "none", ", ".join(left) or "nothing"]
    return f"| {' | '.join(said)} |"


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    rows = []
    for spec in names or ALL:
        gc.collect()
        try:
            rows.append(row(spec))
        except Exception as error:  # noqa: BLE001  # one model must not hide the others
            rows.append(f"| {spec} | | | {type(error).__name__}: {str(error)[:80]} | |")
        print(rows[-1], flush=True)
    good = sum("| none | nothing |" in line for line in rows)
    text = [
        "# Transparency: a step with the recorder and without it",
        "",
        "Made by `python tests/helpers/transparency.py`.",
        "",
        __doc__.partition("\n\n")[2].strip(),
        "Compared bit for bit: loss, outputs, every gradient, parameter and buffer, and the states of the",
        "random generators of torch, NumPy and Python. Left behind: hooks, modes, kernels, patched names.",
        "",
        f"{good} of {len(rows)} models are the same. torch {torch.__version__.partition('+')[0]}, CPU.",
        "",
        "| model | operations recorded | values compared | differ | left behind |",
        "|---|---:|---:|---|---|",
        *rows,
    ]
    if not names:
        Path("reports/transparency.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    return int(good < len(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
