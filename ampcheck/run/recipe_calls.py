"""What a script trains: calls of its models, with the gradients that came back to them, kept to try recipes on.

A script's loss cannot be called again. The gradient that flowed into what a model gave can be used again: with it, a
step of the model alone is the script's own step.
"""

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.fp8.in_use import in_use
from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.model.structure import named_modules, own_parameters
from ampcheck.observe.script.recording import unseen
from ampcheck.targets.spec import Target
from ampcheck.values.modules import within
from ampcheck.values.recipes import PREFIX
from ampcheck.values.settings import Settings

if TYPE_CHECKING:
    from ampcheck.run.session import Session

#: Models kept, and of each the calls: the first, and the last ones.
MOST_MODELS, MOST_CALLS = 4, 4
#: Bytes of inputs kept of one call.
MOST_BYTES = 1 << 28
_LINEAR_FORWARD: Callable[..., torch.Tensor] = torch.nn.Linear.forward
#: Seconds for the search of a plan.
BUDGET = 30.0


@dataclass(slots=True)
class Call:
    """One call, and the gradients of what it gave, by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grads: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Trained:
    """A model that a script trains."""

    held: Callable[[], Any]  #: the model; None where the script let go of it
    kind: str
    in_fp8: tuple[str, ...]  #: layers that run in FP8 by themselves
    recipes: tuple[str, ...]  #: theirs
    calls: list[Call] = field(default_factory=list)

    @property
    def whole(self) -> list[Call]:
        """Return the calls that a backward has come back to."""
        return [call for call in self.calls if call.grads]


class TrainingCalls:
    """Keeps calls of the models that a script trains; nothing else of the script is touched."""

    def __init__(self, recipe: str = "") -> None:
        """Keep calls of every model for a recipe, such as fp8:ao-rowwise; '': of those that train in FP8 already."""
        self.recipe = recipe
        self.models: dict[int, Trained] = {}
        self.failed = 0  #: calls whose inputs could not be copied
        self._open: Call | None = None

    def follow(self, session: "Session") -> None:
        """Hear of the calls in the recorded steps of a watch."""
        roots = session.watcher.roots
        roots.with_gradients, roots.returned = self.note, self.returned
        session.recipes_follow = lambda: self.any

    def note(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of an outermost call that may have a backward; whatever goes wrong, the script goes on."""
        self._open = None
        try:
            with unseen():
                self._keep(module, args, kwargs)
        except Exception:  # noqa: BLE001  # whatever the script passes to its model
            self.failed += 1

    def returned(self, output: Any) -> None:
        """Take note of what the call has given: its gradients are kept when they come."""
        call, self._open = self._open, None
        if call is None:
            return
        try:
            for name, tensor in tensors_in(output, "output"):
                if tensor.requires_grad:
                    tensor.register_hook(partial(_arrives, call, name))
        except Exception:  # noqa: BLE001  # tensors of the script's own kinds
            self.failed += 1

    @property
    def any(self) -> bool:
        """Tell whether a model is there to be tried."""
        return any(one.whole and one.held() is not None for one in self.models.values())

    @property
    def missing(self) -> str:
        """Return why there is none."""
        if self.failed:
            return "the inputs of the model could not be copied"
        return "no call of a model with a backward was seen in the recorded steps"

    def _keep(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = unwrapped(module)
        trained = self._of(model)
        if trained is None or _bytes(args, kwargs) > MOST_BYTES:
            return
        kept = copy.deepcopy((args, kwargs))
        self._open = Call(*kept)
        trained.calls = [*trained.calls[:1], *trained.calls[1:][-(MOST_CALLS - 2) :], self._open]

    def _of(self, model: torch.nn.Module) -> Trained | None:
        if id(model) not in self.models and len(self.models) < MOST_MODELS:
            known = self._known(model)
            if known is None:  # a transform or a criterion: nothing of it is trained
                return None
            self.models[id(model)] = known
        return self.models.get(id(model))

    def _known(self, model: torch.nn.Module) -> Trained | None:
        layers = [layer for layer in in_use(model, "") if layer.recipe and layer.runs]
        parameter = next((p for _, part in named_modules(model) for _, p in own_parameters(part)), None)
        if parameter is None or not (layers or self.recipe):
            return None
        # A model on a GPU may have to make room for the next one.
        on_cpu = parameter.device.type == "cpu"
        held = partial(_itself, model) if on_cpu else weakref.ref(model)
        found = tuple(dict.fromkeys(layer.recipe for layer in layers))
        return Trained(held, type(model).__name__, tuple(layer.module for layer in layers), found)

    @contextmanager
    def targets(self, name: str) -> Iterator[list[tuple[Target, Settings]]]:
        """Give what is to be audited of each model; meanwhile FP8 layers compute as plain ones."""
        found, plain = [], []
        for trained in self.models.values():
            model = trained.held()
            if model is None or not trained.whole:
                continue
            plain += [part for path, part in named_modules(model) if path in trained.in_fp8]
            found.append((_target(name, trained, model), self._settings(trained, model)))
        for part in plain:
            part.__dict__["forward"] = partial(_LINEAR_FORWARD, part)
        try:
            yield found
        finally:
            for part in plain:
                part.__dict__.pop("forward", None)

    def _settings(self, trained: Trained, model: Any) -> Settings:
        """Return the recipe that was asked for, or the script's own in the layers that it has."""
        if self.recipe or len(trained.recipes) != 1:
            return Settings(self.recipe or PREFIX, budget=BUDGET)
        paths = [path for path, _ in named_modules(model) if path]
        others = (path for path in paths if not any(within(fp8, path) for fp8 in trained.in_fp8))
        return Settings(f"{PREFIX}:{trained.recipes[0]}", budget=BUDGET, keep=tuple(others))


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside of torch.compile and DistributedDataParallel."""
    for name in ("_orig_mod", "module"):
        inner = module.__dict__.get("_modules", {}).get(name)
        if inner is not None and type(module).__name__ in {"OptimizedModule", "DistributedDataParallel"}:
            return unwrapped(inner)
    return module


def back(model: Any, batch: Any) -> torch.Tensor:
    """Return what has the gradients of a call's outputs that the script's own loss had there."""
    given = dict(tensors_in(model(*batch["args"], **batch["kwargs"]), "output"))
    grads = batch["grads"]
    parts = [(given[name].float() * grad.float()).sum() for name, grad in grads.items() if name in given]
    return torch.stack(parts).sum()


def _target(name: str, trained: Trained, model: Any) -> Target:
    calls = trained.whole
    batches = [{"args": call.args, "kwargs": call.kwargs, "grads": call.grads} for call in reversed(calls)]
    note = (
        f"{len(calls)} calls of {trained.kind} were run again, with the final weights and the script's own "
        "gradients of the outputs"
    )
    return Target(f"{name}: {trained.kind}", model, batches, back, trains=False, notes=(note,))


def _arrives(call: Call, name: str, grad: torch.Tensor | None) -> None:
    if grad is None:  # of a result that nothing uses
        return
    with unseen():
        before = call.grads.get(name)
        call.grads[name] = grad.detach().clone() if before is None else before + grad


def _itself(model: torch.nn.Module) -> torch.nn.Module:
    return model


def _bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors_in([*args, kwargs], ""))
