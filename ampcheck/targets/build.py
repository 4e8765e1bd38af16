"""From a parsed spec to a target: one function per kind of source."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import torch

from ampcheck.errors import TargetError
from ampcheck.targets.contract import from_user
from ampcheck.targets.pretrained import random_weights, unfetched
from ampcheck.targets.seeding import seeded
from ampcheck.targets.spec import ZOOS, Options, Spec, Target


def build(spec: Spec, options: Options) -> Target:
    """Return the target a spec names; random state outside is left as it was."""
    _check(options)
    make = _builder(spec.kind)
    with seeded(options.seed):
        try:
            target = make(spec, options)
        except TargetError as error:
            why = unfetched(error)
            if why is None:
                raise
            with random_weights():
                target = make(spec, options)
            if options.weights is None:
                note = f"weights are random: pretrained ones could not be loaded ({type(why).__name__})"
                target = replace(target, notes=(*target.notes, note))
        return replace(target, name=spec.text)


def _builder(kind: str) -> Callable[[Spec, Options], Target]:
    """Return the function for a kind of source; a zoo loads late: each needs its own library."""
    if kind not in ZOOS:
        return from_user
    zoo = import_module(f"ampcheck.targets.zoo.{kind}_zoo")
    made: Callable[[Spec, Options], Target] = getattr(zoo, f"from_{kind}")
    return made


def _check(options: Options) -> None:
    try:
        torch.device(options.device)
    except RuntimeError as error:
        raise TargetError(f"expected a device such as cpu or cuda:0, got {options.device!r}") from error
    if options.batch_size is not None and options.batch_size < 1:
        raise TargetError(f"expected a batch size of at least 1, got {options.batch_size}")
