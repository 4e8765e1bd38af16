"""Weights that threads are given, train, and send in half precision, as the clients of a server do.

What a client has changed is lost where it is below half a unit of the weight. That matters where the server goes on
from what it was sent: the weights that it gives back then hold, there, just what half precision held.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe import modes
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.source import running_line
from ampcheck.observe.statistics.memory import readable
from ampcheck.observe.unusual import plain
from ampcheck.values.loop import SENT_WEIGHT
from ampcheck.values.trace import UpdateLoss

#: Elements of the weights that are kept, and how many of those that were sent.
_MOST, _SENT = 2**22, 256
#: Of what was rounded away, the part that is given back as half precision held it: others may have sent something else.
_GIVEN_BACK = 0.25


@dataclass(frozen=True, slots=True)
class _Sent:
    """A weight that was sent, and what that has lost."""

    low: torch.dtype
    stuck: torch.Tensor  #: which elements are sent as they were given
    moved: int
    place: tuple[str, int]


class SentWeights:
    """Compares what a thread sends with what it was given, and what it is given then with what it has sent."""

    def __init__(self) -> None:
        """Begin with none."""
        #: By storage, the weights as they were given.
        self._given: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}
        self._elements = 0  #: of those
        self._sent: deque[_Sent] = deque(maxlen=_SENT)
        self._losses: dict[tuple[str, str, int], UpdateLoss] = {}

    @property
    def losses(self) -> tuple[UpdateLoss, ...]:
        """Return what was lost, by weight and line."""
        return tuple(self._losses.values())

    def stepped(self, parameters: Iterable[torch.Tensor]) -> None:
        """Take note of weights that a thread is about to train: what they were given is what they hold.

        Where there are more than are kept, the later ones are left out: each step would copy all of them.
        """
        new = [one for one in parameters if readable(one) and not self._holds(one)]
        if new:
            self._given = {key: one for key, one in [*self._given.items()] if not one[0].expired()}
            self._elements = sum(now.numel() for _, now in [*self._given.values()])
        for one in new:
            if self._elements + one.numel() <= _MOST:
                self.copied(one)

    def _holds(self, weight: torch.Tensor) -> bool:
        held = self._given.get(weight.untyped_storage()._cdata)
        return held is not None and not held[0].expired()

    @modes.unseen
    def copied(self, target: torch.Tensor) -> None:
        """Take note of a tensor that was written as a copy of another."""
        weight = plain(target) if target.requires_grad and target.is_leaf else None
        if weight is None or weight.dtype is not torch.float32 or not readable(weight) or not weight.numel():
            return
        now = weight.detach().clone()
        self._given_back(now)
        self._elements += now.numel()
        if self._elements > _MOST:
            self._given, self._elements = {}, now.numel()
        storage = weight.untyped_storage()
        self._given[storage._cdata] = StorageWeakRef(storage), now

    def _given_back(self, now: torch.Tensor) -> None:
        one = next((one for one in [*self._sent] if one.stuck.shape == now.shape), None)
        if one is None:
            return
        self._sent = deque((other for other in [*self._sent] if other is not one), _SENT)
        back = now[one.stuck]
        if float((back == back.to(one.low).float()).float().mean()) < _GIVEN_BACK:
            return
        name = f"{SENT_WEIGHT}, of shape {tuple(now.shape)}"
        loss = UpdateLoss(name, one.moved, int(one.stuck.sum()), 0, *one.place)
        self._losses.setdefault((name, *one.place), loss)

    @modes.unseen
    def cast(self, tensor: torch.Tensor, low: torch.Tensor) -> None:
        """Look at a cast, which may be of a weight that is about to be sent."""
        if not self._given or low.dtype not in HALVES or not readable(tensor):
            return
        held, before = self._given.get(tensor.untyped_storage()._cdata, (None, None))
        if held is None or before is None or held.expired() or before.shape != tensor.shape:
            return
        moves = tensor.detach() != before
        stuck = moves & (low.detach() == before.to(low.dtype))
        self._given.pop(tensor.untyped_storage()._cdata)  # what it is given next is another
        moved, place = int(moves.sum()), running_line()
        if moved and 2 * int(stuck.sum()) > moved and place[1]:
            self._sent.append(_Sent(low.dtype, stuck, moved, place))
