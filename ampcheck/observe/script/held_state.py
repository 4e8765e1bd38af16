"""What a step leaves in what models hold: buffers and other tensors, beside what FP32 would leave there."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.held import Held, apart, held
from ampcheck.observe.model.updates import update_loss
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.reference.joined import Joined
from ampcheck.observe.reference.lineage import rounded_at
from ampcheck.observe.script.recorded import Left
from ampcheck.observe.script.second_run import SecondRun
from ampcheck.observe.script.state.ruined import Ruined
from ampcheck.observe.script.state.update_watch import MOST
from ampcheck.observe.statistics.memory import version_of
from ampcheck.values.outcome import HARM_ERROR
from ampcheck.values.trace import Site, UpdateLoss

Models = Iterable[tuple[str, torch.nn.Module]]


class HeldState:
    """What models hold in half precision when a step begins, and all that is off when it ends."""

    def __init__(self, shadow: Joined, second: SecondRun | None, scale: Callable[[], float]) -> None:
        """Compare with what a shadow has; a second run tells how much of it rounding explains."""
        self._shadow, self._second, self._scale = shadow, second, scale
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor, int]] = {}
        self._off: dict[str, Left] = {}  #: by path, what is off
        self._ruined = Ruined(shadow)
        self.was_there = self._ruined.was_there
        self.compared = 0  #: tensors
        self._names: list[str] = []  #: what lies outside of models, and is infinite or NaN now
        self.updates: list[UpdateLoss] = []  #: of what was written in the step

    def remember(self, models: Models) -> None:
        """Keep what models hold in half precision when the step begins."""
        self._ruined.remember()
        for _, one in _by_path(models):
            half = one.tensor.dtype in HALVES and one.tensor.numel() <= MOST
            if half and id(one.tensor) not in self._before:
                was = one.tensor.detach().double(), version_of(one.tensor)
                self._before[id(one.tensor)] = weakref.ref(one.tensor), *was

    def compare(self, models: Models) -> None:
        """Compare what models hold at the end of the step."""
        known = list(models)
        held = list(_by_path(known))
        for path, one in held:
            reference = self._shadow.of(one.tensor)
            if reference is not None:
                self.compared += 1
                self._update(path, one.tensor, reference)
                self._leave(path, one.tensor, reference, saved=one.saved)
        weights = [weight for _, model in known for weight in model.parameters()]
        grads = [grad for weight in weights if (grad := gradient_of(weight)) is not None]
        self._names = self._ruined.names([*weights, *grads, *(one.tensor for _, one in held)])

    def goes_on_with(
        self, recorder: Recorder, made: Mapping[int, Site | None]
    ) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, tuple[str, int]]]]:
        """Return the parameters, and what lies outside of models and is not as FP32 has it, with what rounded it."""
        parameters = [parameter for _, _, parameter in recorder.tracker.parameters()]
        grads = [grad for one in parameters if (grad := gradient_of(one)) is not None]
        others = self._ruined.apart([*parameters, *grads], self._scale())
        sources = recorder.sources() if others else {}
        sites = [rounded_at(made.get(one.untyped_storage()._cdata), sources) for one in others]
        lines = [("", 0) if site is None else (site.file, site.line) for site in sites]
        return parameters, list(zip(others, lines, strict=True))

    def off(self, *, overflowed: bool) -> dict[str, Left]:
        """Return by path what is off; a step whose gradients `overflowed` is known to make infinities of them."""
        ruined = {} if overflowed else {name: Left(inf, 0.0, saved=True) for name in self._names}
        return {**ruined, **self._off}

    def _update(self, path: str, tensor: torch.Tensor, reference: torch.Tensor) -> None:
        known, before, version = self._before.get(id(tensor), (lambda: None, tensor, 0))
        if known() is not tensor or tensor in self._shadow.copies:
            return
        if version_of(tensor) != version and before.shape == tensor.shape:
            wide, low = reference.double() - before, tensor.detach().double() - before
            self.updates.append(update_loss(path, wide, low))

    def _leave(self, path: str, tensor: torch.Tensor, reference: torch.Tensor, *, saved: bool) -> None:
        error = apart(reference, tensor)
        if error > HARM_ERROR:  # it may hold the loss scale itself, or what is multiplied by it
            error = min(error, apart(reference * self._scale(), tensor))
        if error > HARM_ERROR:
            rounded = None if self._second is None else self._second.rounded(tensor)
            explained = 0.0 if rounded is None else apart(reference, rounded)
            self._off[path] = Left(error, explained, saved)


def _by_path(models: Models) -> Iterator[tuple[str, Held]]:
    """Yield what models hold, each tensor by its longest path: a part of a model may be called by itself, too."""
    found = ((f"{name}.{path}", one) for name, model in models for path, one in held(model).items())
    longest: dict[int, tuple[str, Held]] = {}
    for path, one in found:
        known = longest.get(id(one.tensor))
        if known is None or path.count(".") > known[0].count("."):
            longest[id(one.tensor)] = path, one
    yield from longest.values()
