"""FP32 weights that a script fills from half precision before each step: what rounds them takes their updates away."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.updates import update_loss
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.state.naming import Named
from ampcheck.observe.statistics.memory import instances
from ampcheck.observe.unusual import in_memory, plain

if TYPE_CHECKING:
    from ampcheck.values.trace import UpdateLoss

#: Elements that are kept of one optimizer's weights, in all.
_MOST = 2**16


class Refilled:
    """Looks at some weights as an optimizer's first step leaves them, and as its second one finds them."""

    def __init__(self, named: Named) -> None:
        """Begin with none; `named` says what a parameter is called."""
        self._named = named
        #: By optimizer, its weights before and after its first step, until its second one.
        self.kept: dict[str, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]] = {}
        self.losses: list[UpdateLoss] = []

    def begins(self, label: str, parameters: Iterable[Any], place: Callable[[], tuple[str, int]]) -> None:
        """Compare what a second step finds with what the first has left; `place` says where it is taken."""
        with unseen():
            if label not in self.kept:
                chosen = [*_chosen(parameters)]
                filled = any(
                    map(_varies, (held for _, held in chosen))
                )  # one alike is so without half precision
                if not filled or not any(one.dtype in HALVES for one in instances(torch.nn.Parameter)):
                    chosen = []
                self.kept[label] = [(one, held.clone(), None) for one, held in chosen]
                return
            kept, self.kept[label] = self.kept[label], []
            for parameter, before, after in kept:
                now = plain(parameter)
                now = None if now is None or not in_memory(now) else now
                known = after is not None and now is not None and now.shape == before.shape
                if after is None or now is None or not known or not _was_rounded(now.detach(), after):
                    continue
                loss = update_loss(self._named(parameter)[1], after - before, now.detach() - before)
                file, line = place()
                self.losses.append(replace(loss, file=file, line=line, stepped=True))

    def ends(self, label: str) -> None:
        """Keep what the first step has left."""
        with unseen():
            self.kept[label] = [(one, before, _copy(one)) for one, before, _ in self.kept[label]]


def _copy(parameter: torch.Tensor) -> torch.Tensor | None:
    held = plain(parameter)
    return None if held is None or not in_memory(held) else held.detach().clone()


def _chosen(parameters: Iterable[Any]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Yield weights in FP32 that hold nothing but numbers of half precision, as such copies do at first."""
    elements = 0
    for parameter in parameters:
        held = plain(parameter) if isinstance(parameter, torch.Tensor) else None
        if held is None or held.dtype is not torch.float32 or elements + held.numel() > _MOST:
            continue
        elements += held.numel()
        if not in_memory(held) or held.is_meta:
            continue
        if held.layout is torch.strided and held.numel() and _is_half(held.detach()):
            yield parameter, held.detach()


def _varies(weights: torch.Tensor) -> bool:
    """Tell whether weights hold several numbers."""
    return bool((weights != weights.flatten()[0]).any())


def _was_rounded(now: torch.Tensor, after: torch.Tensor) -> bool:
    """Tell whether weights hold other numbers than before, all of them such as half precision has."""
    return not torch.equal(now, after) and _is_half(now) and not _is_half(after)


def _is_half(tensor: torch.Tensor) -> bool:
    return any(torch.equal(tensor.to(dtype).to(tensor.dtype), tensor) for dtype in HALVES)
