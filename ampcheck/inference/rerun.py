"""A chain of calls run again: in FP32, in low precision, or in low precision with what is carried on in FP32."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ampcheck.inference.casting import Way
from ampcheck.inference.chain import Call, Chain, Held, Operation, Ref, tensors_held
from ampcheck.inference.iterations import STATE
from ampcheck.inference.lab import Subject, call_kept
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.modules import parts_of, tensors_in
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Widened

#: The key of a batch that stands for the whole chain; others are single calls.
CHAINED = "calls in a row"
#: What the results of a chain are called.
CALL = "call "
#: Difference between what a call gave to the script and what it gives now, up to which they are the same call.
_SAME = 0.01
_DEPTH = 6


class Rerun:
    """Runs a chain of calls as the script did; a batch without a chain is one call."""

    def __init__(self, chain: Chain | None, *, low: bool) -> None:
        """Prepare to run calls; `low` tells whether the script itself computes in low precision."""
        self.chain, self.low = chain, low

    def __call__(self, model: Any, batch: Any) -> Any:
        """Run a batch in FP32, or as the model is."""
        return self.run(model, batch, Way())

    def run(self, model: Any, batch: Any, way: Way) -> Any:
        """Return what each call of a chain gives in a way, or what the one call gives."""
        if self.chain is None or CHAINED not in batch:
            wide = torch.float32 if way.dtype is None else way.dtype
            # A cache is filled by the call, and is to be as the script had it at the next run.
            return call_kept(model, {key: with_own_objects(batch[key], wide) for key in ("args", "kwargs")})
        run = _Run(self.chain, model, batch, way, low=self.low)
        return dict(run.outputs())


class _Run:
    """One run of a chain."""

    def __init__(self, chain: Chain, model: Any, batch: Any, way: Way, *, low: bool) -> None:
        self.chain, self.model, self.way = chain, model, way
        between = torch.float32 if way.dtype is None or way.state else way.dtype
        self.between = between  #: what the script's half precision is between the calls
        #: What a call is made on, where the script computed in FP32 and the model is cast now.
        self.cast = way.dtype if way.weights and not low else None
        started = dict(tensors_in([batch["args"], batch["kwargs"]], ""))
        self.values = {
            number: self._between(started[name]).clone()
            for name, number in self.chain.first.items()
            if name in started
        }
        self.objects: dict[int, Any] = {}
        self.device = Subject(model, [], call_kept).device.type

    def outputs(self) -> Iterator[tuple[str, Any]]:
        """Yield what each call gives, and before it what it is made on."""
        number = 0
        for event in self.chain.events:
            if isinstance(event, Call):
                number += 1
                carried = [self._value(ref.number).clone() for ref in event.carried]
                if carried:
                    yield f"{STATE}{CALL}{number}", carried if len(carried) > 1 else carried[0]
                yield f"{CALL}{number}", self._call(event)
            else:
                with torch.autocast(self.device, enabled=False):
                    self._operation(event)

    def _operation(self, event: Operation) -> None:
        args, kwargs = tree_map(self._given, (event.args, event.kwargs))
        out = event.func(*args, **kwargs)
        results = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        self.values.update(zip(event.outs, results, strict=False))

    def _call(self, event: Call) -> Any:
        args, kwargs = tree_map(self._to_model, (event.args, event.kwargs))
        out = self.model(*args, **kwargs)
        given = {name: tensor.detach() for name, tensor in tensors_in(out, "output")}
        shown = {name: tensor.clone() for name, tensor in given.items()}  # the script may write into them
        self.values.update({n: self._between(given[name]) for name, n in event.outs.items() if name in given})
        objects = dict(_objects(out, "output")) if event.objects else {}
        self.objects.update({n: objects[name] for name, n in event.objects.items() if name in objects})
        put = dict(tensors_in([args, kwargs], "")) if event.put else {}
        self.values.update({n: self._between(put[name]) for name, n in event.put.items() if name in put})
        return shown["output"] if "output" in shown else {_short(name): one for name, one in shown.items()}

    def _given(self, leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return self._value(leaf.number)
        if isinstance(leaf, Held):
            return self._object(leaf.number)
        return self.between if isinstance(leaf, torch.dtype) and leaf in HALVES else leaf

    def _to_model(self, leaf: Any) -> Any:
        value = self._given(leaf)
        if not isinstance(leaf, Ref) or not value.is_floating_point():
            return value
        if self.cast is not None:
            return value.to(self.cast)
        return value.to(self.way.dtype) if self.way.dtype is not None and leaf.low else value

    def _between(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        wide = self.way.state and tensor.is_floating_point()
        return tensor.to(torch.float32 if wide else self.between) if tensor.dtype in HALVES else tensor

    def _value(self, number: int) -> torch.Tensor:
        if number not in self.values:
            self.values[number] = self._between(self.chain.constants[number]).clone()
        return self.values[number]

    def _object(self, number: int) -> Any:
        if number not in self.objects:
            wide = torch.float32 if self.way.dtype is None else self.way.dtype
            self.objects[number] = _own(self.chain.states[number], wide)
        return self.objects[number]


def with_own_objects(value: Any, dtype: torch.dtype) -> Any:
    """Return arguments with a copy of each object that has a state, its half precision in a dtype."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return value
    if type(value) in (list, tuple):
        return type(value)(with_own_objects(one, dtype) for one in value)
    if type(value) is dict:
        return {key: with_own_objects(one, dtype) for key, one in value.items()}
    return _own(value, dtype) if hasattr(value, "__dict__") else value


def _own(held: Any, dtype: torch.dtype) -> Any:
    """Return a copy of an object, with the tensors that it holds in half precision in a dtype."""
    low = {id(one): one.detach().to(dtype, copy=True) for one in tensors_held(held) if one.dtype in HALVES}
    return copy.deepcopy(held, dict(low))


def runs_again(rerun: Rerun, subject: Subject, way: Way) -> bool:
    """Tell whether a chain comes out as it did in the script, and can be run in FP32."""
    before = Snapshot(subject.model, list(subject.batches))
    assert rerun.chain is not None  # without one there is nothing to ask
    calls = [event for event in rerun.chain.events if isinstance(event, Call)]
    try:
        with subject.ready(way):
            found = rerun.run(subject.model, subject.batches[0], way)
        before.restore()
        Widened(subject.model, list(subject.batches))
        with subject.ready(Way()):
            rerun.run(subject.model, subject.batches[0], Way())
    except Exception:  # noqa: BLE001  # whatever the script's own code does
        return False
    finally:
        before.restore()
    given = [dict(_named(one)) for name, one in found.items() if name.startswith(CALL)]
    pairs = zip(calls, given, strict=True)
    return all(_same(call.gave[name], given.get(_short(name))) for call, given in pairs for name in call.gave)


def _named(given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return iter(given.items()) if isinstance(given, dict) else iter([("output", given)])


def _short(name: str) -> str:
    return name.removeprefix("output").lstrip(".") or name


def _same(before: torch.Tensor, after: torch.Tensor | None) -> bool:
    if after is None or before.shape != after.shape:
        return False
    if not before.is_floating_point():
        return torch.equal(before, after)
    known = before.isfinite() & after.isfinite()
    if not torch.equal(before.isfinite(), after.isfinite()):
        return False
    r, x = before.double().where(known, 0.0), after.double().where(known, 0.0)
    return float((x - r).norm()) <= _SAME * float(r.norm())


def _objects(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield name, value
    if depth < _DEPTH:
        for part, held in parts_of(value):
            yield from _objects(held, name + part, depth + 1)
