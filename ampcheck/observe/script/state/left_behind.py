"""What a training leaves in its models: numbers that are no longer finite, whichever step has made them so."""

import weakref
from collections.abc import Iterator

import torch

from ampcheck.observe.model.structure import in_table, named_modules
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.statistics.memory import version_of
from ampcheck.observe.unusual import in_memory, plain


class LeftBehind:
    """Looks at the tensors of models twice: when a model is first called, and at the end."""

    def __init__(self) -> None:
        self._models: list[tuple[weakref.ref[torch.nn.Module], str, dict[str, int]]] = []
        #: Names of tensors that were finite at first, and are not at the end.
        self.ruined: tuple[str, ...] = ()
        #: The same where all of them are buffers in float16: FP32 has 2^112 times the range.
        self.overflown: tuple[str, ...] = ()

    def first_seen(self, model: torch.nn.Module, name: str) -> None:
        """Take note of a model, and of its buffers that are not finite from the start: masks are never written."""
        with unseen():
            written = {at: version_of(tensor) for at, tensor in tensors_of_model(model, ("_buffers",))}
        masks = {at: written[at] for at in _not_finite(model, ("_buffers",))}
        self._models.append((weakref.ref(model), name, masks))

    def end(self) -> None:
        """Look at what is there now."""
        found: dict[str, bool] = {}
        for known, name, before in self._models:
            if (model := known()) is not None:
                now = _not_finite(model, ("_parameters", "_buffers"))
                with unseen():
                    held = dict(tensors_of_model(model))
                    buffers = {at for at, _ in tensors_of_model(model, ("_buffers",))}
                found |= {
                    f"{name}.{at}": at in buffers and held[at].dtype is torch.float16
                    for at in now
                    if at not in before or version_of(held[at]) != before[at]
                }
        self.ruined = tuple(found)
        self.overflown = self.ruined if all(found.values()) else ()


def _not_finite(model: torch.nn.Module, tables: tuple[str, ...]) -> list[str]:
    """Return the names of tensors that hold an inf or NaN, by one question to each device."""
    held: dict[torch.device, dict[str, torch.Tensor]] = {}
    with unseen():
        for name, tensor in tensors_of_model(model, tables):
            held.setdefault(tensor.device, {})[name] = tensor.isfinite().all()
        return [
            name
            for on in held.values()
            for name, fine in zip(on, torch.stack(list(on.values())).tolist(), strict=True)
            if not fine
        ]


def tensors_of_model(
    model: torch.nn.Module, tables: tuple[str, ...] = ("_parameters", "_buffers")
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's tensors of floating point that lie in memory, by name."""
    for path, module in named_modules(model):
        for table in tables:
            for name, tensor in in_table(module, table):
                part = plain(tensor)
                known = part is not None and part.layout is torch.strided and part.is_floating_point()
                if part is not None and known and not part.is_meta and part.itemsize > 1 and in_memory(part):
                    yield f"{path}.{name}".lstrip("."), part.detach()
