"""Weights from a file, without ever running code that is hidden in it, and the model's place on a device."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.spec import Options

#: Names under which training scripts keep the state dict inside a checkpoint.
NESTS = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
#: What wrappers put before each name: DataParallel, torch.compile, Lightning.
PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
SHOWN_KEYS = 3
RANDOM_WEIGHTS = "weights are random (--weights FILE loads yours)"


def place(model: Any, options: Options) -> Any:
    """Return the model with the weights of the options, on the device of the options."""
    if options.dry:  # it has neither
        return model
    if options.weights is not None:
        load_weights(model, options.weights)
    if not hasattr(model, "to"):
        return model
    try:
        moved = model.to(options.device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise TargetError(
            f"the model cannot be put on {options.device!r}: {str(error).splitlines()[0]}"
        ) from error
    return model if moved is None else moved


def weights_note(options: Options) -> str:
    """Say what weights a model of a zoo has."""
    return RANDOM_WEIGHTS if options.weights is None else f"weights are those of {options.weights.name}"


def load_weights(model: Any, path: Path) -> None:
    """Copy the weights in a file into the model; every name and shape has to match."""
    if not hasattr(model, "load_state_dict"):
        raise TargetError(f"expected an nn.Module to load {str(path)!r} into, got {type(model).__name__}")
    load_tensors(model, _state_dict(_read(path), path), path)


def load_tensors(model: Any, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copy named tensors into the model; every name and shape has to match."""
    loaded = _fitting_names(dict(tensors), model)
    own = model.state_dict(keep_vars=True)
    _check(loaded, own, path)
    # Tied weights are stored once; their other names follow.
    model.load_state_dict(loaded, strict=False)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise TargetError(f"no such file: {str(path)!r}; --weights takes a safetensors or torch file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file makes of the reader
        raise TargetError(
            f"{str(path)!r} is not a file of plain weights ({type(error).__name__}); pickles are never run",
            hint=f"torch.save(model.state_dict(), {path.name!r})",
        ) from error


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise TargetError(
            "safetensors files need the package safetensors", hint="pip install safetensors"
        ) from error
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise TargetError(f"{str(path)!r} is not a readable safetensors file: {error}") from error


def _state_dict(value: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return the state dict inside a checkpoint."""
    while isinstance(value, Mapping):
        if value and all(isinstance(item, torch.Tensor) for item in value.values()):
            return {str(key): item for key, item in value.items()}
        value = next((value[key] for key in NESTS if isinstance(value.get(key), Mapping)), None)
    raise TargetError(f"expected a state dict in {str(path)!r}, plain or under one of {', '.join(NESTS)}")


def _fitting_names(loaded: dict[str, torch.Tensor], model: Any) -> dict[str, torch.Tensor]:
    """Take off the prefixes of wrappers, as long as that makes more names fit."""
    own = set(model.state_dict())
    best = loaded
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if all(key.startswith(prefix) for key in best):
                shorter = {key.removeprefix(prefix): item for key, item in best.items()}
                if len(own & shorter.keys()) > len(own & best.keys()) or prefix in PREFIXES[:2]:
                    best = shorter
    return best if len(own & best.keys()) > len(own & loaded.keys()) else loaded


def _check(loaded: dict[str, torch.Tensor], own: dict[str, Any], path: Path) -> None:
    held = {id(own[key]) for key in loaded if key in own}
    missing = [key for key in own if key not in loaded and id(own[key]) not in held]
    unexpected = [key for key in loaded if key not in own]
    shapes = [
        f"{key} is {tuple(loaded[key].shape)}, expected {tuple(own[key].shape)}"
        for key in loaded
        if key in own and getattr(own[key], "shape", None) != loaded[key].shape
    ]
    problems = [
        f"{len(keys)} {kind}: {', '.join(keys[:SHOWN_KEYS])}{', ...' if len(keys) > SHOWN_KEYS else ''}"
        for kind, keys in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if keys
    ]
    if problems:
        raise TargetError(f"the weights in {str(path)!r} do not fit the model: {'; '.join(problems)}")
