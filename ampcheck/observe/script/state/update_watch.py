"""What optimizers of a script do to weights held in half precision: which changes are rounded away.

Beside a step of torch's own optimizers the same step is taken in FP32, from the same weights, gradients and state.
That is done where the learning rate is at its largest so far: smaller steps are lost sooner. Once more it is done
a few steps later, as Adam's first steps are its largest. Where the rate has fallen, one of these steps is tried as
well: most of its changes may be lost, which need not matter so late, but is not seen to be safe.
"""

import functools
import inspect
import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.updates import update_loss
from ampcheck.observe.script.optimizers import parameters_of
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.drifts import Drifts
from ampcheck.observe.script.state.half_rounds import HalfRounds
from ampcheck.observe.script.state.loaded import (
    is_still_half,
    lost_in_loading,
    lost_in_saving,
    odd_numbers,
    squares_lost_in_saving,
)
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.script.state.own_updates import OwnUpdates
from ampcheck.observe.script.state.refilled import Refilled
from ampcheck.observe.script.state.sent_weights import SentWeights
from ampcheck.observe.source import running_line
from ampcheck.observe.unusual import plain
from ampcheck.values.trace import UpdateLoss

#: How many times larger a learning rate must be for its step to be looked at again.
_GROWN = 1.5
#: Part of the learning rate of the last step looked at to which it must fall for another look.
_FALLEN = 0.51
#: The step that is tried once more, and of the first gradient, what is left where there is as much to learn.
_LATER, _AS_LARGE = 8, 0.5
#: Of the way that FP32 would go, what is left where most of a later step is lost.
_HALF_WAY = 0.5
#: Elements whose update is tried in FP32 at most; of the parameters beyond them nothing is said.
MOST = 2**24
#: Optimizers of torch's that ask for the loss again, or take no dense gradients.
_NOT_TRIED = frozenset({"LBFGS", "SparseAdam"})
#: A parameter with its plain part and its gradient, or as it was and as FP32's step leaves it.
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class UpdateWatch:
    """Compares updates of half-precision weights with FP32's."""

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        self._largest: dict[str, float] = {}
        self._last: dict[str, float] = {}  #: by optimizer, the learning rate of the step that was tried last
        self._faded: dict[str, None] = {}  #: weights that lost most of a step at a smaller learning rate
        #: By thread: the optimizer that steps, and FP32's step; whether that is a later one.
        self._tried: dict[int, tuple[str, list[_Three], bool]] = {}
        self._steps: dict[str, int] = {}  #: by optimizer, how many it has taken of weights in half precision
        self._norms: dict[str, float] = {}  #: by optimizer, the norm of its first gradients
        self._places: dict[str, tuple[str, int]] = {}  #: by optimizer, the line that steps it
        self._losses: dict[str, dict[str, UpdateLoss]] = {}
        self._own, self._refilled, self._drifts = OwnUpdates(named), Refilled(named), Drifts(named)
        self.sent, self.rounds = SentWeights(), HalfRounds(named)
        self._filled_at = ("", 0)  #: the line where a model has loaded its weights last
        self._loads: dict[int, tuple[UpdateLoss, ...]] = {}  #: by optimizer that has not stepped since
        self._loaded: list[UpdateLoss] = []
        self._models: dict[int, weakref.ref[torch.nn.Module]] = {}  #: that have loaded something
        self._before: dict[int, dict[str, tuple[int, int]]] = {}  #: odd numbers of those that load
        self.untried: dict[str, str] = {}  #: by optimizer, its class: its updates could not be taken in FP32

    def loads(self, optimizer: torch.optim.Optimizer, saved: Any) -> None:
        """Compare the state that an optimizer has loaded with what was saved."""
        self._loads[id(optimizer)] = tuple(lost_in_loading(optimizer, saved, running_line()))
        self._loaded += squares_lost_in_saving(optimizer, saved, running_line())

    def model_is_to_load(self, model: torch.nn.Module) -> None:
        """Look at a model that has loaded nothing before: one that loads again and again is a copy of another."""
        known = self._models.get(id(model))
        if known is None or known() is not model:
            self._models[id(model)] = weakref.ref(model)
            self._before[id(model)] = odd_numbers(model)

    def model_loads(self, model: torch.nn.Module) -> None:
        """Look at what it has loaded."""
        self._filled_at = running_line()
        if (before := self._before.pop(id(model), None)) is not None:
            self._loaded += lost_in_saving(model, before, running_line())

    @property
    def still(self) -> list[str]:
        """Return the weights that stand still, of which nothing else is known."""
        known = {loss.name for loss in self.losses if 2 * loss.stuck > loss.moved}
        return [*self._drifts.still, *(name for name in self._faded if name not in known)]

    @property
    def unjudged(self) -> list[str]:
        """Return the weights that were filled from half precision, of which nobody knows what that loses."""
        known = self.rounds.compared
        return [*self.rounds.unjudged, *(one for one in self._refilled.from_elsewhere if one not in known)]

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what was lost, by parameter."""
        tried = (loss for held in self._losses.values() for loss in held.values())
        return (
            *tried,
            *self._own.losses,
            *self._refilled.losses,
            *self._drifts.losses,
            *self.sent.losses,
            *self._loaded,
        )

    def in_fp32(self) -> Iterable[torch.Tensor]:
        """Return weights that training keeps in FP32."""
        return () if self.rounds.unjudged else self._refilled.in_fp32()

    def begins(self, label: str, optimizer: Any, parameters: Iterable[Any]) -> None:
        """Take an optimizer's step in FP32 where that would show more than its steps before."""
        held = list(parameters)
        self._tried.pop(get_ident(), None)
        if self._loads:
            lost = self._loads.pop(id(optimizer), ())
            self._loaded += [one for one in lost if is_still_half(optimizer, one.name)]
        if self._refilled.kept.get(label, True):
            self._refilled.begins(label, held, running_line)
        self.rounds.begins(label, held, lambda: self._filled_at if self._filled_at[1] else running_line())
        kind = type(optimizer)
        if not _usual(kind.__module__, kind.__name__) or getattr(optimizer, "grad_scale", None) is not None:
            self._own.begins(label, optimizer, held)
        low = [p for p in held if isinstance(p, torch.Tensor) and p.dtype in HALVES and p.grad is not None]
        if low and _known(optimizer):
            self._adds_up(label, optimizer, low)
        rate = _learning_rate(optimizer) if low else 0.0
        largest = self._largest.get(label, 0.0)
        self._steps[label] = self._steps.get(label, 0) + bool(low)
        later = self._steps[label] == _LATER and rate <= _GROWN * largest and _known(optimizer)
        if rate <= _GROWN * largest and not 0.0 < rate <= _FALLEN * self._last.get(label, 0.0) and not later:
            return
        if not _known(optimizer):
            self.untried[label] = type(optimizer).__name__
            return
        with unseen():
            chosen = _chosen(low)
            norm = sum(float(grad.detach().float().square().sum()) for _, _, grad in chosen) ** 0.5
            if later and not norm >= _AS_LARGE * self._norms.get(label, norm):
                return
            self._norms.setdefault(label, norm)
            after = _in_fp32(optimizer, chosen)
            steps = [(p, part.detach().clone(), after[id(p)]) for p, part, _ in chosen]
            self._tried[get_ident()] = label, steps, later
        self._largest[label], self._last[label], self._places[label] = (
            max(rate, largest),
            rate,
            running_line(),
        )

    def _adds_up(self, label: str, optimizer: Any, low: list[torch.Tensor]) -> None:
        """Add a step in FP32 to those before it, of weights that are small enough."""
        if small := self._drifts.wants(label, low):
            with unseen():
                chosen = _chosen(small)
                self._drifts.add(label, chosen, _in_fp32(optimizer, chosen), running_line)

    def elsewhere(self, event: str, optimizer: Any = None) -> None:
        """Hear of an optimizer of torch's in a thread that is not the one that is watched."""
        if event == "step_begins" and _known(optimizer):
            self.sent.stepped(parameters := parameters_of(optimizer))
            self.begins(f"{type(optimizer).__name__} {id(optimizer)}", optimizer, parameters)
        elif event == "step_ends":
            self._compare()  # drifts hear of no end here, and judge nothing

    def ends(self, label: str) -> None:
        """Compare what the optimizer has done with FP32's step."""
        if self._refilled.kept.get(label):
            self._refilled.ends(label)
        if label in self.rounds.trains:
            self.rounds.ends(label)
        if self._own.follows:
            self._own.ends()
        if self._drifts.adds_up:
            self._drifts.ends(label)
        if self._tried:
            self._compare()

    def end(self) -> None:
        """Stop watching."""
        self._refilled.end()

    def _compare(self) -> None:
        label, tried, later = self._tried.pop(get_ident(), ("", [], False))
        if not tried:
            return
        place = self._places[label]
        with unseen():
            found = {}
            for parameter, before, wide in tried:
                now = plain(parameter)
                if now is None or now.shape != before.shape:
                    continue
                start = before.double()
                wanted, went = wide.double() - start, now.detach().double() - start
                loss = update_loss(self._named(parameter)[1], wanted, went)
                if not later or _falls_short(loss, wanted, went):
                    found[loss.name] = replace(loss, file=place[0], line=place[1], stepped=True)
        if self._last[label] < self._largest[label]:
            self._faded |= dict.fromkeys(name for name, loss in found.items() if 2 * loss.stuck > loss.moved)
        else:
            self._losses[label] = {**self._losses.get(label, {}), **found} if later else found


def _falls_short(loss: UpdateLoss, wanted: torch.Tensor, went: torch.Tensor) -> bool:
    """Tell whether most of a later step is lost: where some changes are rounded up, they make up for others."""
    return 2 * loss.stuck > loss.moved and bool((wanted * went).sum() < _HALF_WAY * wanted.square().sum())


def _learning_rate(optimizer: Any) -> float:
    """Return the largest learning rate of an optimizer's groups; of one on another device it is not asked."""
    rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
    return max(
        (float(rate) for rate in rates if not isinstance(rate, torch.Tensor) or rate.is_cpu), default=0.0
    )


def _known(optimizer: Any) -> bool:
    """Tell whether an optimizer's step is known to depend on its parameters and state alone, and to be repeatable."""
    kind = type(optimizer)
    return _usual(kind.__module__, kind.__name__) and getattr(optimizer, "grad_scale", None) is None


@functools.cache
def _usual(module: str, name: str) -> bool:
    return module.startswith("torch.optim.") and name not in _NOT_TRIED


def _chosen(low: Iterable[torch.Tensor]) -> list[_Three]:
    """Return parameters with their plain parts and gradients, as many as are tried."""
    found, elements = [], 0
    for parameter in low:
        part, grad = plain(parameter), plain(parameter.grad)
        fits = part is not None and elements + part.numel() <= MOST
        if part is not None and grad is not None and fits and grad.layout is torch.strided:
            found.append((parameter, part, grad))
            elements += part.numel()
    return found


def _in_fp32(optimizer: Any, chosen: list[_Three]) -> dict[int, torch.Tensor]:
    """Return the chosen parameters as a step in FP32 leaves them, by identity."""
    references = {}
    for parameter, part, grad in chosen:
        reference = part.detach().float().clone()
        reference.grad = grad.detach().float().clone()
        references[id(parameter)] = reference
    state: dict[Any, Any] = defaultdict(dict)
    for parameter, _, _ in chosen:
        held = optimizer.state.get(parameter, {})
        state[references[id(parameter)]] = {name: _widened(value) for name, value in held.items()}
    groups = [
        {**group, "params": [references[id(p)] for p in group["params"] if id(p) in references]}
        for group in optimizer.param_groups
    ]
    other = object.__new__(type(optimizer))
    other.__dict__.update({**vars(optimizer), "state": state, "param_groups": groups})
    inspect.unwrap(type(optimizer).step)(other)
    return references


def _widened(value: Any) -> Any:
    """Return a copy of a part of an optimizer's state, in FP32 where it was held in less."""
    if not isinstance(value, torch.Tensor):
        return value
    part = plain(value)
    held = value if part is None else part
    return held.detach().float().clone() if held.dtype in HALVES else held.detach().clone()
