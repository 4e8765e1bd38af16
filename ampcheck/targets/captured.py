"""A real batch, kept: what a model was called with in training, its weights, and the gradient that came back to it.

One safetensors file holds all three, so that the step can be audited without the data, the loss or the script. The
loss that it is audited with is the sum of the outputs, each multiplied by its gradient: it has the same gradient.
"""

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.nested import move
from ampcheck.targets.spec import Options, Target
from ampcheck.targets.weights import load_tensors, place

_FORMAT = "ampcheck capture 1"
STATE, INPUT, GRADIENT = "state.", "input.", "gradient."
_PLAIN = (bool, int, float, str, type(None))


def flattened(value: Any, tensors: dict[str, torch.Tensor], start: str) -> Any:
    """Return a nested value as JSON holds it, its tensors put aside under names that begin alike."""
    if isinstance(value, torch.Tensor):
        name = f"{start}{len(tensors)}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[str(key), flattened(held, tensors, start)] for key, held in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [flattened(held, tensors, start) for held in value]}
    if isinstance(value, _PLAIN):
        return {"value": value}
    raise TargetError(f"a {type(value).__name__} among the inputs of a model cannot be kept in a capture")


def restored(held: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the nested value that was flattened."""
    ((kind, inner),) = held.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: restored(value, tensors) for key, value in inner}
    if kind in {"list", "tuple"}:
        values = [restored(value, tensors) for value in inner]
        return values if kind == "list" else tuple(values)
    return inner


def outputs(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output that can have a gradient, in order."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from outputs(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from outputs(held)


class Capture:
    """Keeps the first call of a model that gets a gradient back, in a file."""

    def __init__(
        self, model: torch.nn.Module, path: str | Path, scale: Callable[[], float] = lambda: 1.0
    ) -> None:
        """Listen to a model; `scale` says what the loss is multiplied by."""
        from safetensors.torch import save_file

        self._save, self._scale = save_file, scale
        self._model, self.path, self.done = model, Path(path), False
        self._tensors: dict[str, torch.Tensor] = {}
        self._call: Any = None
        self._number = 0
        self._problem: TargetError | None = None
        self._gradients: dict[int, torch.Tensor] = {}
        self._handles = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave),
        ]

    def _enter(self, _model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self._gradients or self._problem is not None:
            return
        self._number += 1  # a call that got no gradient back is forgotten
        tensors = {f"{STATE}{name}": value for name, value in _state(self._model)}
        try:
            self._call = [flattened(args, tensors, INPUT), flattened(kwargs, tensors, INPUT)]
        except TargetError as problem:  # it is raised where the capture ends, not inside the model
            self._problem = problem
        self._tensors = tensors

    def _leave(self, _model: Any, _args: Any, output: Any) -> None:
        if self._call is None or self._gradients or self.done:
            return
        found = list(enumerate(outputs(output)))
        # A loss among the outputs passes its gradient through the others: it stands for them.
        losses = [(number, one) for number, one in found if one.ndim == 0 and one.requires_grad]
        for number, one in losses or found:
            if one.requires_grad:
                one.register_hook(functools.partial(self._arrived, self._number, number))

    def _arrived(self, call: int, number: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None and not self.done and call == self._number:
            self._gradients[number] = gradient.detach().float().cpu() / self._scale()

    def close(self) -> bool:
        """Stop listening and write the file; return whether there was anything to write."""
        for handle in self._handles:
            handle.remove()
        if self._problem is not None:
            raise self._problem
        if self.done or not self._gradients:
            return self.done
        self.done = True
        for number, gradient in self._gradients.items():
            self._tensors[f"{GRADIENT}{number}"] = gradient.contiguous()
        about = {
            "format": _FORMAT,
            "target": _target(self._model, self.path),
            "training": str(self._model.training),
            "call": json.dumps(self._call),
        }
        self._save(self._tensors, str(self.path), metadata=about)
        return True

    def __enter__(self) -> Self:
        """Listen inside a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write what was heard."""
        self.close()


def _target(model: torch.nn.Module, path: Path) -> str:
    """Return the file and the class of a model, as seen from the capture's folder; '' where it has no file."""
    inner = getattr(model, "module", model)
    code = getattr(inspect.unwrap(type(inner).forward), "__code__", None)
    if code is None:
        return ""
    try:
        file = Path(code.co_filename).absolute()
        shown = Path(os.path.relpath(file, path.absolute().parent)).as_posix()
    except ValueError:  # another drive
        return ""
    return f"{shown}:{type(inner).__name__}" if file.is_file() else ""


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights and buffers, each in memory of its own."""
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            yield name, value.detach().to("cpu", copy=True).contiguous()


def read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Return what a capture says of itself, and its tensors; no code in it is run."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
    except (OSError, SafetensorError) as error:
        raise TargetError(f"expected a capture, could not read {str(path)!r}: {error}") from error
    if about.get("format") != _FORMAT:
        raise TargetError(
            f"expected a capture of ampcheck's, got {str(path)!r}",
            hint="ampcheck.capture(model, 'capture.safetensors')",
        )
    return about, tensors


def batch_and_loss(
    about: Mapping[str, str], tensors: Mapping[str, torch.Tensor]
) -> tuple[tuple[Any, Any, list[Any]], Callable[[Any, Any], torch.Tensor]]:
    """Return the call and its gradients as a batch, and the loss that has these gradients."""
    args, kwargs = (restored(held, tensors) for held in json.loads(about["call"]))
    count = 1 + max(
        (int(name.removeprefix(GRADIENT)) for name in tensors if name.startswith(GRADIENT)), default=-1
    )
    gradients = [tensors.get(f"{GRADIENT}{number}") for number in range(count)]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        given, named, arrived = batch
        found = list(outputs(model(*given, **named)))
        pairs = [(one, grad) for one, grad in zip(found, arrived, strict=False) if grad is not None]
        return torch.stack([(one.float() * grad).sum() for one, grad in pairs]).sum()

    return (args, kwargs, gradients), loss


def replayed(model: Any, options: Options, name: str) -> Target:
    """Return the target that a capture is: its weights in the model, its batch, and the loss with its gradients."""
    assert options.captured is not None  # else nothing was asked for
    about, tensors = read(options.captured)
    weights = {key.removeprefix(STATE): value for key, value in tensors.items() if key.startswith(STATE)}
    load_tensors(model, weights, options.captured)
    model.train(about["training"] == "True")
    model = place(model, replace(options, weights=None))
    batch, loss = batch_and_loss(about, tensors)
    note = (
        f"batch, weights and gradients are those of {options.captured.name}; the loss has the captured gradients "
        "and no value of its own: what the real loss does in low precision was not seen"
    )
    return Target(name, model, [move(batch, options.device)], loss, notes=(note,))
