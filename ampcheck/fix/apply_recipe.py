"""A plan of an FP8 recipe put to work on a model, where its library converts a model that there is."""

from dataclasses import replace
from typing import Any

from ampcheck.errors import ReportError
from ampcheck.fix.recipe_terms import AO_CASTS, AO_NAMES
from ampcheck.values.plan import Plan


def convert(plan: Plan, model: Any) -> Any:
    """Convert a model's layers with torchao as a plan says, and return the model."""
    name = AO_NAMES.get(plan.recipe)
    if name is None:
        raise ReportError(
            f"expected a recipe that converts a model ({', '.join(AO_NAMES)}), got {plan.recipe}; its library builds "
            "layers of its own: write the model with them, as the lines of --save-patch say"
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.config import CastConfig, ScalingType
    except ImportError as error:
        raise ReportError(
            f"expected torchao, which has the recipe {plan.recipe}: pip install torchao"
        ) from error
    config = Float8LinearConfig.from_recipe_name(name)
    kept = frozenset(plan.bf16_modules)
    off = {
        cast: CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=getattr(config, cast).target_dtype)
        for gemm in plan.bf16_gemms
        for cast in AO_CASTS[gemm]
    }
    partly = replace(config, **off) if off else config
    if kept or not off:
        convert_to_float8_training(model, config=config, module_filter_fn=lambda _, path: path not in kept)
    if off:
        convert_to_float8_training(
            model, config=partly, module_filter_fn=lambda _, path: not kept or path in kept
        )
    return model
