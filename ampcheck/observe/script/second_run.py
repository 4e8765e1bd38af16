"""A second run beside a recorded step: FP32 once more, but for one thing, which tells what that thing alone does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import torch

from ampcheck.observe.reference.joined import Joined
from ampcheck.observe.reference.moved import Moved
from ampcheck.observe.reference.picks import Place, RoundedPicks
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.unusual import plain


class Look(StrEnum):
    """What the second run does otherwise."""

    ROUNDED = "rounded"  #: its weights are rounded
    SPARED = "spared"  #: its weights are rounded, but for those of one module
    MOVED = "moved"  #: half-precision numbers from before the step are moved by as much as rounding may have
    PICKED = "picked"  #: what it picks it picks by its own numbers


class SecondRun(Joined):
    """The references of that run."""

    def __init__(
        self,
        first: Shadow,
        look: Look,
        rounds_to: torch.dtype,
        weights: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        """Prepare to run behind the `first` one; its weights are rounded to a dtype, where that is what it tries."""
        super().__init__(first.run)
        self.look, self._rounds_to = look, rounds_to
        self.decides = look is Look.PICKED
        if look is Look.ROUNDED:
            self.picks = RoundedPicks(lambda: first.picks)
        if look is Look.MOVED:
            self.given = Moved(self, weights)
        self._rounded: set[int] = set()  #: parameters
        self._losses: list[torch.Tensor] = []
        self.rows: dict[str, torch.Tensor] = {}  #: comparisons of gradients with FP32's, by parameter

    def round_weights(self, parameters: Iterable[torch.Tensor], *, again: bool) -> None:
        """Round the weights that are not yet; all of them `again` where an optimizer may have changed them."""
        if self.look not in {Look.ROUNDED, Look.SPARED}:
            return
        if again:
            self._rounded.clear()
        for parameter in parameters:
            own = plain(parameter)
            if own is not None and id(parameter) not in self._rounded and own.is_floating_point():
                self._rounded.add(id(parameter))
                self.replace(own.detach(), own.detach().to(self._rounds_to))

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what stands here where only weights are rounded; None where that was not tried, or is the same."""
        return self.of(tensor) if self.look is Look.ROUNDED else None

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep its loss."""
        if loss.numel() == 1:
            own = self.of(loss)
            self._losses.append((loss if own is None else own).detach().double())

    @property
    def worse(self) -> Mapping[Place, float]:
        """Return by place how much worse its picks are where only its weights are rounded."""
        return self.picks.worse() if isinstance(self.picks, RoundedPicks) else {}

    def fetch(self) -> tuple[Look, dict[str, Sequence[float]], float]:
        """Return what it does otherwise, the comparisons by parameter, and the loss."""
        rows: dict[str, Sequence[float]] = {name: row.tolist() for name, row in self.rows.items()}
        return self.look, rows, float(sum(self._losses))
