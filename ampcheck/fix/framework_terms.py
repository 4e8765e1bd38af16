"""A plan in the terms of a framework: the line that a person writes there to start the loss scale elsewhere.

Each is tried in its framework by tests/fix/test_framework_terms.py, where the framework can be installed.
"""

import ast
from collections.abc import Callable, Iterator
from math import log2
from pathlib import Path

from ampcheck.values.plan import Plan

#: Where a framework is named in imports: its name here.
IMPORTS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers": "transformers",
    "accelerate": "Accelerate",
    "keras": "Keras",
    "determined": "Determined",
    "ultralytics": "Ultralytics",
    "deepspeed": "DeepSpeed",
}


def _scaler(power: int) -> str:
    return f'torch.amp.GradScaler("cuda", init_scale=2.0**{power})'


def _lightning(power: int) -> str:
    return (
        "Trainer(plugins=[lightning.pytorch.plugins.MixedPrecision("
        f'"16-mixed", "cuda", scaler={_scaler(power)})])'
    )


def _fabric(power: int) -> str:
    return (
        "Fabric(plugins=[lightning.fabric.plugins.MixedPrecision("
        f'"16-mixed", "cuda", scaler={_scaler(power)})])'
    )


#: What starts the loss scale at a power of two.
SCALES: dict[str, Callable[[int], str]] = {
    "Lightning": _lightning,
    "Fabric": _fabric,
    "transformers": lambda power: f"trainer.accelerator.scaler = {_scaler(power)}  # before trainer.train()",
    "Accelerate": lambda power: (
        'Accelerator(mixed_precision="fp16", kwargs_handlers=[accelerate.utils.GradScalerKwargs('
        f"init_scale=2.0**{power})])"
    ),
    "Keras": lambda power: (
        f"keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=2.0**{power}, dynamic_growth_steps=2000)"
    ),
    "Determined": lambda power: f"self.scaler = self.context.wrap_scaler({_scaler(power)})",
    "Ultralytics": lambda power: (
        'model.add_callback("on_pretrain_routine_end", lambda trainer: setattr(trainer, "scaler", '
        f"{_scaler(power)}))"
    ),
    "DeepSpeed": lambda power: f'{{"fp16": {{"enabled": true, "initial_scale_power": {power}}}}}',
}
#: What trains in bf16, which needs no loss scale.
BF16 = {
    "Lightning": 'Trainer(precision="bf16-mixed")',
    "Fabric": 'Fabric(precision="bf16-mixed")',
    "transformers": "TrainingArguments(bf16=True)",
    "Accelerate": 'Accelerator(mixed_precision="bf16")',
    "Keras": 'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    "Determined": "self.context.experimental.use_amp is for fp16: torch.autocast with torch.bfloat16 in train_batch",
    "DeepSpeed": '{"bf16": {"enabled": true}}',
}


def in_use(file: Path | None) -> list[str]:
    """Return the frameworks that a file imports; of Lightning, Fabric where that is what it takes from it."""
    try:
        text = file.read_text(encoding="utf-8") if file is not None else ""
        names = list(_imported(ast.parse(text)))
    except (OSError, SyntaxError, ValueError):
        return []
    found = [IMPORTS[name.partition(".")[0]] for name in names if name.partition(".")[0] in IMPORTS]
    if any("fabric" in name.lower() for name in names):
        found = ["Fabric" if name == "Lightning" else name for name in found]
    return list(dict.fromkeys(found))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_terms(plan: Plan | None, frameworks: list[str]) -> tuple[str, ...]:
    """Return a plan's precision and loss scale as each framework writes them."""
    if plan is None:
        return ()
    if plan.precision == "bf16":
        return tuple(f"in {name}: {BF16[name]}" for name in frameworks if name in BF16)
    if plan.scaler is None or plan.precision != "fp16":
        return ()
    power = round(log2(plan.scaler.init_scale))
    return tuple(f"in {name}: {SCALES[name](power)}" for name in frameworks if name in SCALES)
