"""Ways to update half-precision weights that do not lose small changes: by chance, with Kahan, in FP32."""

from collections.abc import Callable, Sequence

import torch

from ampcheck.diagnose.rules.optimizer_eps import LARGER_EPS
from ampcheck.values.plan import Claim, Tried
from ampcheck.values.wording import percent

STOCHASTIC, KAHAN, MASTERS = "stochastic rounding", "Kahan summation", "FP32 master weights"
WAYS = (STOCHASTIC, KAHAN, MASTERS)
#: The same optimizer with an eps that half precision holds.
SAFE_EPS = f"an eps of {LARGER_EPS:g}"
#: Share of FP32's way that a remedy has to go at least, and at most.
_ENOUGH, _TOO_MUCH = 0.8, 1.25


class HalfUpdates:
    """Lets an optimizer compute in FP32, and puts its result into half-precision weights by a rounding of choice."""

    def __init__(self, optimizer: torch.optim.Optimizer, way: str) -> None:
        """Prepare; `way` is one of `WAYS`."""
        self._optimizer = optimizer
        self._way = way
        self._left: dict[int, torch.Tensor] = {}  #: by memory of the weight, what its rounding has left out
        self._masters: dict[int, torch.Tensor] = {}  #: the same weights in FP32
        self._draws = torch.Generator().manual_seed(0)

    def step(self) -> None:
        """Update the weights."""
        held = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        low = [(p, p.data, p.grad) for p in held if p.dtype.itemsize == 2]  # noqa: PLR2004
        for parameter, data, grad in low:
            parameter.grad = None
            parameter.data = self._masters.get(data.data_ptr(), data.float())
            parameter.grad = grad.float()
        self._optimizer.step()
        for parameter, data, grad in low:
            wide = parameter.data
            parameter.grad = None
            parameter.data = data.copy_(self._rounded(wide, data))
            parameter.grad = grad

    def aside(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what belongs to a weight and is kept beside it."""
        return self._left.get(tensor.data_ptr(), torch.zeros_like(tensor))

    def _rounded(self, wide: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        if self._way == STOCHASTIC:
            return stochastically(wide, data.dtype, self._draws)
        if self._way == MASTERS:
            self._masters[data.data_ptr()] = wide
            self._left[data.data_ptr()] = wide - wide.to(data.dtype).float()
            return wide.to(data.dtype)
        wanted = wide + self.aside(data).float()
        result = wanted.to(data.dtype)
        self._left[data.data_ptr()] = (wanted - result.float()).to(data.dtype)
        return result


def stochastically(wide: torch.Tensor, dtype: torch.dtype, draws: torch.Generator) -> torch.Tensor:
    """Return numbers rounded up or down at random, each as likely as it is near.

    The mean over many draws is the number itself.
    """
    near = wide.to(dtype)
    # The neighbour on the other side of the number; where the number is held exactly, it is not taken.
    toward = torch.where(near.float() < wide, torch.inf, -torch.inf).to(dtype)
    other = torch.nextafter(near.cpu(), toward.cpu()).to(near.device)
    gap = (other.float() - near.float()).abs()
    share = ((wide - near.float()).abs() / gap).nan_to_num(0.0, 0.0, 0.0)
    drawn = torch.rand(wide.shape, generator=draws).to(wide.device)
    return torch.where(drawn < share, other, near)


def claims(
    train: Callable[[str], dict[str, torch.Tensor]],
    wide: dict[str, torch.Tensor],
    names: list[str],
    ways: Sequence[str] = WAYS,
) -> tuple[Claim, ...]:
    """Return for each way of updating how far it brings the tensors of these names.

    `train` gives by how much each tensor moves, `wide` by how much it moves in FP32.
    """
    before = _share(train(""), wide, names)
    shown = []
    for way in ways:
        share = _share(train(way), wide, names)
        tried = Tried.CONFIRMED if _ENOUGH <= share <= _TOO_MUCH else Tried.REFUTED
        how = f"train half weights with {way}" if way == SAFE_EPS else f"update half weights by {way}"
        shown.append(Claim(how, tried, _words(before), _words(share)))
    return tuple(shown)


def _share(moved: dict[str, torch.Tensor], wide: dict[str, torch.Tensor], names: list[str]) -> float:
    """Return which share of FP32's way tensors go, along it."""
    along = sum(float((moved[name] * wide[name]).nan_to_num(0.0, 0.0, 0.0).sum()) for name in names)
    return along / sum(float(wide[name].square().sum()) for name in names)


def _words(share: float) -> str:
    return f"goes {percent(share)} of FP32's way" if share > 0 else "does not go FP32's way"
