"""The statistics of scaled operands: what every cast of a recipe was given, and what it lost."""

from dataclasses import dataclass

import torch

from ampcheck.observe.fp8.casts import CUT_OFF, Rounded
from ampcheck.observe.fp8.delayed import Memory
from ampcheck.observe.fp8.owners import Layer
from ampcheck.observe.statistics.measure import Arena
from ampcheck.observe.statistics.step_record import statistics
from ampcheck.values.recipe_audit import OperandStats
from ampcheck.values.recipes import Recipe
from ampcheck.values.stats import TensorStats


@dataclass(slots=True)
class _Row:
    arena: int
    sums: torch.Tensor  #: underflowed, saturated, error energy, energy
    low: torch.Tensor
    high: torch.Tensor


class OperandRecorder:
    """Takes every rounded operand of a step; nothing is read back before the end."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._arenas: dict[torch.device, Arena] = {}
        self._rows: dict[tuple[Layer, str, str, torch.device], _Row] = {}

    def __call__(self, layer: Layer, gemm: str, name: str, result: Rounded) -> None:
        """Add what one cast was given."""
        scaled, held = result.scaled, result.held
        device = scaled.device
        arena = self._arenas.setdefault(device, Arena(device))
        key = (layer, gemm, name, device)
        if key not in self._rows:
            zero = torch.zeros(4, dtype=torch.float64, device=device)
            self._rows[key] = _Row(
                arena.row(), zero, torch.full((), torch.inf, device=device), torch.zeros((), device=device)
            )
        row = self._rows[key]
        arena.add(row.arena, scaled.contiguous())
        cast = self._recipe.casts[gemm, name]
        used = torch.where(result.scale > 0, result.scale, torch.inf)
        row.low, row.high = torch.minimum(row.low, used.min()), torch.maximum(row.high, result.scale.max())
        # The loss is shown in the units of each scale, so that one large block does not hide the others.
        underflowed = ((held == 0) & (scaled != 0)).sum()
        saturated = (scaled.abs() > CUT_OFF[cast.format]).sum()
        part = torch.where(result.scale > 0, result.scale, 1.0)
        error = torch.linalg.vector_norm((held - scaled) / part, dtype=torch.float64).square()
        energy = torch.linalg.vector_norm(scaled / part, dtype=torch.float64).square()
        row.sums += torch.stack([underflowed.double(), saturated.double(), error, energy])

    def read(self, memory: Memory) -> tuple[OperandStats, ...]:
        """Return what was seen, in order of execution."""
        records = {device: list(statistics(arena.read())) for device, arena in self._arenas.items()}
        found = []
        for (layer, gemm, name, device), row in self._rows.items():
            underflowed, saturated, error, energy = row.sums.tolist()
            slot = memory.slots.get((layer, name))
            found.append(
                OperandStats(
                    layer.module,
                    layer.parameter,
                    gemm,
                    name,
                    self._recipe.casts[gemm, name].format,
                    records[device][row.arena] or TensorStats(),
                    int(underflowed),
                    int(saturated),
                    (error / energy) ** 0.5 if energy else 0.0,
                    (float(row.low), float(row.high)),
                    tuple(float(amax) for amax in slot.past) if slot is not None else (),
                )
            )
        return tuple(found)
