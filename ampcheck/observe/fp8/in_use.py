"""Layers that a script trains in FP8 already: known by their class, so that no library is loaded to ask for it."""

import sys
from typing import Any

import torch

from ampcheck.observe.model.structure import named_modules, own_parameters
from ampcheck.values.recipe_audit import InUse

_TE, _AO = "transformer_engine", "torchao"
_RECIPES = {
    "DelayedScaling": "te-delayed",
    "Float8CurrentScaling": "te-current",
    "Float8BlockScaling": "te-block",
    "MXFP8BlockScaling": "te-mxfp8",
    "NVFP4BlockScaling": "te-nvfp4",
}
_MX = ("MXLinear", "MXFP8Linear")


def in_use(model: torch.nn.Module, name: str) -> tuple[InUse, ...]:
    """Return the layers of a model that torchao or TransformerEngine made."""
    found: list[InUse] = []
    named = [(f"{name}.{path}".strip("."), module) for path, module in named_modules(model)]
    attentions = {
        f"{path}.out_proj" for path, module in named if isinstance(module, torch.nn.MultiheadAttention)
    }
    for path, module in named:
        library = type(module).__module__.partition(".")[0]
        kind = type(module).__name__
        if library == _AO and kind == "Float8Linear":
            found.append(InUse(path, _AO, *_float8(module.config), runs=path not in attentions))
        elif library == _AO and kind in _MX:
            found.append(InUse(path, _AO, "ao-mxfp8", runs=path not in attentions))
        elif library == _TE and any(one.dim() > 1 for _, one in own_parameters(module)):
            found.append(InUse(path, "TransformerEngine", note=_asked()))
    return tuple(found)


def _asked() -> str:
    """Return the recipe that TransformerEngine's autocast asks for here, in a sentence."""
    for name in ("quantization", "fp8"):  # where newer and older versions keep it
        manager = getattr(sys.modules.get(f"{_TE}.pytorch.{name}"), "FP8GlobalStateManager", None)
        if manager is not None and manager.is_fp8_enabled():
            kind = type(manager.get_fp8_recipe()).__name__
            known = f", which is emulated as {_RECIPES[kind]}" if kind in _RECIPES else ""
            return f"its autocast asks for {kind}{known}"
    return ""


def _float8(config: Any) -> tuple[str, str]:
    """Return the recipe of torchao's configuration, and what is to be said of it."""
    rowwise = _value(config.cast_config_input, "scaling_granularity") == "axiswise"
    wide = _value(config.cast_config_input_for_grad_weight, "scaling_type") == "disabled"
    recipe = "ao-rowwise-gw-hp" if rowwise and wide else "ao-rowwise" if rowwise else "ao-tensorwise"
    dropped = config.emulate and not rowwise and "torchtitan" in sys.modules
    note = "torchtitan's emulate=True drops the recipe: this is tensorwise, whatever was asked for"
    return recipe, note if dropped else ""


def _value(cast: Any, name: str) -> str:
    return str(getattr(getattr(cast, name, None), "value", ""))
