"""What threads of a script's own compute beside its training, and what they read or pick after an overflow."""

from contextlib import suppress
from math import inf, isfinite
from typing import Any

import torch

from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.reference.checks import READ
from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.reference.shadow import Follow
from ampcheck.observe.script.results import Results
from ampcheck.observe.statistics.memory import tensors_of

#: Operations that pick among the elements of what they are given first.
_PICKS = frozenset({"argmin", "argmax", "topk", "sort", "argsort"})
#: Error of a number that is read, and share of picks that are others, from which on they are nothing like FP32's.
_NOTHING_LIKE = 0.5


class Served(Results):
    """The references of such threads."""

    def __init__(self) -> None:
        super().__init__()
        #: What picks, or '' for a number that is read; where numbers overflow that it is made of; how far it is off.
        self.found: tuple[str, str, int, float] | None = None

    def reads(self, func: Any, args: Args) -> None:
        """Look at a number that a thread reads, if an operation does that."""
        if func is not READ or self.found is not None or not args[0].is_floating_point():
            return
        with (
            suppress(Exception),
            self.lock,
            torch._C._DisableTorchDispatch(),
        ):  # of our own: nothing is known then
            over, wide = self._over_of([args[0]]), self.of(args[0])
            if over is None or wide is None or not isfinite(high := float(wide)):
                return
            low = float(args[0])
            off = abs(low - high) / max(abs(high), 1e-12) if isfinite(low) else inf
            if off > _NOTHING_LIKE:
                self.found = "", over.file, over.line, off

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        follow = super()._follow(rule, func, args, kwargs)
        over = None if rule.name not in _PICKS or self.found else self._over_of([*tensors_of(args)])
        if follow is None or over is None:
            return follow

        def and_compare(out: Any) -> None:
            follow(out)
            with suppress(Exception), self.lock, torch._C._DisableTorchDispatch():
                wide = self.of(args[0])
                if wide is None:
                    return
                picked, best = ([*tensors_of((one,))][-1] for one in (out, func(wide, *args[1:], **kwargs)))
                share = float((picked != best).float().mean())
                if share > _NOTHING_LIKE:
                    self.found = rule.name, over.file, over.line, share

        return and_compare
