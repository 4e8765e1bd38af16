"""A plan in the terms of a framework: the line that a person writes there to start the loss scale elsewhere.

Each is tried in its framework: by tests/fix/test_framework_terms.py, or by tests/fix/test_advice_in_frameworks.py.
"""

import ast
from collections.abc import Callable, Iterator
from math import log2
from pathlib import Path

from ampcheck.values.formats import HALF_DTYPES
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
    "megatron": "Megatron",
    "torchtitan": "TorchTitan",
}
#: What is torch's own: the last part of what is imported.
OF_TORCH = {"fully_shard": "FSDP2"}


def _scaler(power: int) -> str:
    return f'torch.amp.GradScaler("cuda", init_scale=2.0**{power})'


def _plugin(maker: str, package: str) -> Callable[[int], str]:
    """Return what starts the loss scale in Lightning or in Fabric."""
    plugin = f'lightning.{package}.plugins.MixedPrecision("16-mixed", "cuda", scaler='
    return lambda power: f"{maker}(plugins=[{plugin}{_scaler(power)})])"


#: What FSDP2 computes in, and what it adds gradients up in.
_FSDPHALF_DTYPES = "param_dtype=torch.{}, reduce_dtype=torch.float32"

#: What Determined is called where a trial lets it scale the loss.
_AUTOMATIC = "Determined with use_amp"
#: What starts the loss scale at a power of two.
SCALES: dict[str, Callable[[int], str]] = {
    "Lightning": _plugin("Trainer", "pytorch"),
    "Fabric": _plugin("Fabric", "fabric"),
    "transformers": lambda power: f"trainer.accelerator.scaler = {_scaler(power)}  # before trainer.train()",
    "Accelerate": lambda power: (
        'Accelerator(mixed_precision="fp16", kwargs_handlers=[accelerate.utils.GradScalerKwargs('
        f"init_scale=2.0**{power})])"
    ),
    "Keras": lambda power: (
        f"keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=2.0**{power}, dynamic_growth_steps=2000)"
    ),
    "Determined": lambda power: (
        f"self.scaler = self.context.wrap_scaler({_scaler(power)})  # before wrap_model"
    ),
    _AUTOMATIC: lambda power: f"self.context._scaler = {_scaler(power)}  # after use_amp()",
    "Ultralytics": lambda power: (
        'model.add_callback("on_pretrain_routine_end", lambda trainer: setattr(trainer, "scaler", '
        f"{_scaler(power)}))"
    ),
    "DeepSpeed": lambda power: f'{{"fp16": {{"enabled": true, "initial_scale_power": {power}}}}}',
    "FSDP2": lambda power: (
        f"fully_shard(model, mp_policy=MixedPrecisionPolicy({_FSDPHALF_DTYPES.format('float16')})); "
        f"scaler = {_scaler(power)}"
    ),
    "Megatron": lambda power: f"--fp16 --initial-loss-scale {2**power}",
}
_OWN_REGION = (
    'with torch.autocast("cuda", torch.bfloat16):  # around the forward in train_batch, without a scaler'
)
#: What trains in bf16, which needs no loss scale.
BF16 = {
    "Lightning": 'Trainer(precision="bf16-mixed")',
    "Fabric": 'Fabric(precision="bf16-mixed")',
    "transformers": "TrainingArguments(bf16=True)",
    "Accelerate": 'Accelerator(mixed_precision="bf16")',
    "Keras": 'keras.mixed_precision.set_global_policy("mixed_bfloat16")',
    "Determined": _OWN_REGION,
    _AUTOMATIC: f"{_OWN_REGION} and without use_amp()",
    "Ultralytics": 'model.train(amp="bf16")',
    "DeepSpeed": '{"bf16": {"enabled": true}}',
    "FSDP2": f"fully_shard(model, mp_policy=MixedPrecisionPolicy({_FSDPHALF_DTYPES.format('bfloat16')}))",
    "Megatron": "--bf16",
    "TorchTitan": "--training.mixed_precision_param bfloat16 --training.mixed_precision_reduce float32",
}
#: What keeps a module in FP32 where the framework casts modules, and not operations.
KEEPS: dict[str, Callable[[str, str], str]] = {
    "FSDP2": lambda name, low: (
        f'fully_shard(model.get_submodule("{name}"), mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, '
        f"output_dtype=torch.{low}))  # before fully_shard(model)"
    ),
    "Keras": lambda name, _: f'dtype="float32"  # an argument of the layer "{name}", where it is built',
}


def in_use(file: Path | None) -> list[str]:
    """Return the frameworks that a file imports; of Lightning, Fabric where that is what it takes from it."""
    try:
        text = file.read_text(encoding="utf-8") if file is not None else ""
        names = list(_imported(ast.parse(text)))
    except (OSError, SyntaxError, ValueError):
        return []
    known = (IMPORTS.get(name.partition(".")[0], OF_TORCH.get(name.rpartition(".")[2], "")) for name in names)
    found = [name for name in known if name]
    if any("fabric" in name.lower() for name in names):
        found = ["Fabric" if name == "Lightning" else name for name in found]
    if ".use_amp()" in text:
        found = [_AUTOMATIC if name == "Determined" else name for name in found]
    return list(dict.fromkeys(found))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_terms(plan: Plan | None, frameworks: list[str]) -> tuple[str, ...]:
    """Return a plan's precision, loss scale and modules in FP32 as each framework writes them."""
    if plan is None:
        return ()
    return tuple(
        f"in {name}: {line}" for name in frameworks for line in (*_start(plan, name), *_kept(plan, name))
    )


def _start(plan: Plan, name: str) -> Iterator[str]:
    if plan.precision == "bf16" and name in BF16:
        yield BF16[name]
    elif plan.precision == "fp16" and plan.scaler is not None and name in SCALES:
        yield SCALES[name](round(log2(plan.scaler.init_scale)))


def _kept(plan: Plan, name: str) -> Iterator[str]:
    """Yield what keeps the plan's modules in FP32."""
    if name == "transformers" and plan.cast == "weights" and plan.fp32_modules:
        names = ", ".join(f'"{module}"' for module in plan.fp32_modules)
        yield f"Model._keep_in_fp32_modules_strict = [{names}]  # before Model.from_pretrained; forward casts its input"
    elif name in KEEPS and plan.precision in HALF_DTYPES:
        yield from (KEEPS[name](module, HALF_DTYPES[plan.precision]) for module in plan.fp32_modules)
