"""The models that a script trains, under the names that it uses: what it calls, and what it only holds."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.fp8.in_use import in_use
from ampcheck.observe.model.gradients import gradient_of
from ampcheck.observe.model.structure import named_modules, own_parameters
from ampcheck.observe.script.recording import Recording
from ampcheck.observe.script.roots import holder_in_script, name_in_script
from ampcheck.observe.script.state.left_behind import LeftBehind
from ampcheck.observe.script.uncalled import Uncalled

if TYPE_CHECKING:
    from ampcheck.values.recipe_audit import InUse

#: Groups of parameters of the same shapes that are kept in mind.
_GROUPS = 4


@dataclass(frozen=True, slots=True)
class Root:
    """An outermost module."""

    module: Callable[[], torch.nn.Module | None]
    name: str  #: what the script calls it
    owns: bool  #: it has parameters


class Models:
    """Names the modules of a script, and the parameters of its optimizers."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Any, str, str]] = {}
        #: By shapes, the last groups of parameters of these, and those that were called as such.
        self._alike: dict[tuple[torch.Size, ...], deque[list[tuple[Any, str, str]]]] = {}
        self._guessed: set[int] = set()
        self._roots: dict[int, Root] = {}
        self._given: list[Root] = []
        self.uncalled = Uncalled()
        self.left_behind = LeftBehind()
        self.in_use: dict[str, InUse] = {}  #: layers that the script trains in FP8 by itself
        #: Hears of outermost modules with parameters.
        self.met: Callable[[torch.nn.Module], object] = lambda _: None

    def discard(self, why: str = "") -> None:
        """Give up what is being recorded."""

    def give(self, module: torch.nn.Module, name: str = "") -> None:
        """Name a model from its top, whichever part of it the script calls; '' as the script does."""
        root = self.root(module, name)
        if root not in self._given:
            self._given.append(root)

    def root(self, module: torch.nn.Module, name: str = "") -> Root:
        """Return what is known of an outermost module, looking into it when it is first seen."""
        known = self._roots.get(id(module))
        if known is not None and known.module() is module:
            return known
        holder = None if name else holder_in_script(module)
        if holder is not None:
            self.give(holder)
        name = name or name_in_script(module)
        owned = [
            (f"{name}.{path}" if path else name, own, parameter)
            for path, part in named_modules(module)
            for own, parameter in own_parameters(part)
        ]
        found = Root(weakref.ref(module), name, owns=bool(owned))
        self.in_use |= {layer.module: layer for layer in in_use(module, name)}
        whole = self._holds_others(module)
        for layer, own, parameter in owned:
            if whole or id(parameter) not in self._names:
                self._names[id(parameter)] = (weakref.ref(parameter), layer, own)
        if whole:
            # What was seen were its parts, run alone: a model that tries its layers while it is made.
            self.discard()
            self._given.insert(0, found)
        self._roots[id(module)] = found
        if found.owns:
            self.met(module)
        self.left_behind.first_seen(module, name)
        return found

    def models(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the outermost modules that are still there, with what the script calls them."""
        for root in self._roots.values():
            module = root.module()
            if module is not None:
                yield root.name, module

    def left_gradients(self) -> Iterator[torch.Tensor | None]:
        """Yield what parameters have for gradients."""
        return (gradient_of(one) for _, model in self.models() for one in model.parameters())

    def name(self, parameter: torch.Tensor) -> tuple[str, str]:
        """Return the layer that owns a parameter, and the parameter's full name."""
        if not self._knows(parameter):
            return "", f"a parameter of shape {tuple(parameter.shape)}"
        _, layer, own = self._names[id(parameter)]
        return layer, f"{layer}.{own}"

    def _knows(self, parameter: torch.Tensor) -> bool:
        known = self._names.get(id(parameter))
        return known is not None and known[0]() is parameter

    def know(self, parameters: Iterable[Any], *, quickly: bool = False) -> None:
        """Find out what those parameters are called that no module was called with.

        Looking through memory takes long: `quickly`, those made anew in the place of others are called as these were.
        """
        tensors = (one for one in parameters if isinstance(one, torch.Tensor))
        unknown = [
            one for one in tensors if not self._knows(one) or (not quickly and id(one) in self._guessed)
        ]
        if not unknown:
            return
        shapes = tuple(one.shape for one in unknown)
        alike = self._alike.setdefault(shapes, deque(maxlen=_GROUPS))
        # Of a group that is gone, a variable may still hold one; and the last one may be in use here.
        gone = (one for one in alike if any(known() is None for known, _, _ in one))
        before = next(gone, ()) if quickly else ()
        found: Iterable[tuple[torch.Tensor, str, str]] = ()
        if before:
            self._guessed.update(map(id, unknown))
            found = ((one, layer, own) for one, (_, layer, own) in zip(unknown, before, strict=True))
        else:
            self._guessed.difference_update(map(id, unknown))
            found = self.uncalled.look_for(unknown)
        for parameter, layer, own in found:
            self._names[id(parameter)] = (weakref.ref(parameter), layer, own)
        if all(map(self._knows, unknown)):
            alike.append([self._names[id(one)] for one in unknown])

    def _holds_others(self, module: torch.nn.Module) -> bool:
        inside = {id(part) for _, part in named_modules(module)} - {id(module)}
        return any(key in inside and root.module() is not None for key, root in self._roots.items())

    def adopt_given(self, recording: Recording) -> None:
        """Follow the models that are named from their top."""
        for given in self._given:
            model = given.module()
            if model is not None:
                recording.recorder.adopt(model, given.name)

    def adopt_uncalled(self, recording: Recording, parameters: Iterable[Any] = ()) -> None:
        """Follow modules that are not called, and tensors that are in none."""
        self.know(parameters)
        for module, name in self.uncalled.modules():
            self.give(module, name)
        self.adopt_given(recording)
        for path, name, tensor in self.uncalled.bare():
            recording.recorder.tracker.hold(path, name, tensor)
        recording.round_weights()
        recording.remember(self.models())

    def hold(self, recording: Recording, parameters: list[torch.Tensor]) -> None:
        """Follow parameters that are stepped and that no module of the recording has."""
        tracker = recording.recorder.tracker
        held = {id(parameter) for _, _, parameter in tracker.parameters()}
        self.know(parameters)
        for parameter in parameters:
            if id(parameter) not in held and self._knows(parameter):
                _, layer, own = self._names[id(parameter)]
                tracker.hold(layer, own, parameter)
