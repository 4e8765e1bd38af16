"""FP8 that a script writes itself: casts to an eight-bit format, and products of what these gave."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.fp8.casts import CUT_OFF
from ampcheck.observe.ops import OpKind, plan_of
from ampcheck.observe.statistics.memory import readable
from ampcheck.values.recipe_audit import InUse
from ampcheck.values.wording import percent, plural

_FORMATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
EIGHTHS = frozenset(_FORMATS)
#: What the layers that a script's own casts stand in are said to train by.
BY_HAND = "the script's own casts"
_PRODUCTS = ("_scaled_mm", "_scaled_mm_v2")

_Place = tuple[str, str, str]  #: module, forward or backward, format


@dataclass(slots=True)
class _Cast:
    count: int
    sums: torch.Tensor  #: not zero before, zero after, cut off, energy of the error, energy


@dataclass(slots=True)
class _Product:
    count: int
    unknown: int  #: of these, those whose operands were not cast here
    sums: torch.Tensor  #: energy of the error against bf16, energy


class CastsByHand:
    """Takes every cast to FP8 of a step, and every product of operands in FP8; nothing is read before the end."""

    def __init__(self) -> None:
        self._casts: dict[_Place, _Cast] = {}
        self._products: dict[tuple[str, str], _Product] = {}
        self._before: dict[int, tuple[StorageWeakRef, torch.Tensor]] = {}  #: by storage: what was cast
        self._multiplying: dict[int, bool] = {}  #: by operation: it multiplies operands in FP8

    def multiplies(self, func: Any) -> bool:
        """Tell whether an operation multiplies operands in FP8."""
        known = self._multiplying.get(id(func))
        if known is None:
            schema = getattr(func, "_schema", None)
            known = schema is not None and schema.name.removeprefix("aten::") in _PRODUCTS
            self._multiplying[id(func)] = known
        return known

    def note(self, recorder: Any, func: Any, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Take note of an operation that casts to FP8, or multiplies what was cast so."""
        node: Any = torch._C._current_autograd_node()
        phase = "forward" if node is None else "backward"
        running = recorder.tracker.path(recorder._where.current)
        module = running if node is None else recorder.whose(node).module
        if self.multiplies(func):
            self.product(module, phase, args, out)
            return
        kind = plan_of(func).kind
        source = args[1] if kind is OpKind.COPY else args[0]
        if kind in {OpKind.COPY, OpKind.CAST} and isinstance(source, torch.Tensor):
            self.cast(module, phase, source, out)

    def cast(self, module: str, phase: str, source: torch.Tensor, out: torch.Tensor) -> None:
        """Add what a cast was given and what it gave."""
        if source.dtype in EIGHTHS or source.shape != out.shape or not (readable(source) and readable(out)):
            return
        name = _FORMATS[out.dtype]
        wide, held = source.detach().float(), out.detach().float()
        known = self._casts.setdefault(
            (module, phase, name), _Cast(0, torch.zeros(5, dtype=torch.float64, device=wide.device))
        )
        known.count += 1
        cut = (wide.abs() > CUT_OFF[name]) | ~held.isfinite()
        off = torch.where(held.isfinite(), held - wide, wide).double()
        parts = [wide != 0, (held == 0) & (wide != 0), cut, off.square(), wide.double().square()]
        known.sums += torch.stack([part.sum(dtype=torch.float64) for part in parts])
        flat = torch.zeros(out.untyped_storage().nbytes(), dtype=torch.float32, device=wide.device)
        flat.as_strided(out.size(), out.stride(), out.storage_offset()).copy_(wide)
        storage = out.untyped_storage()
        self._before = {key: one for key, one in self._before.items() if not one[0].expired()}
        self._before[storage._cdata] = (StorageWeakRef(storage), flat)

    def product(self, module: str, phase: str, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Compare a product with the one that bf16 gives of the same operands before they were cast."""
        known = self._products.setdefault(
            (module, phase), _Product(0, 0, torch.zeros(2, dtype=torch.float64, device=out.device))
        )
        known.count += 1
        left, right = self._of(args[0]), self._of(args[1])
        try:
            bf16 = _in_bf16(left, args[2]) @ _in_bf16(right, args[3])
        except (AttributeError, RuntimeError, TypeError):  # scales of blocks do not multiply as they are
            known.unknown += 1
            return
        bias = args[4] if len(args) > 4 and isinstance(args[4], torch.Tensor) else 0.0  # noqa: PLR2004
        wide = bf16.double() + bias
        known.sums += torch.stack([(out.double() - wide).square().sum(), wide.square().sum()])

    def _of(self, tensor: Any) -> torch.Tensor | None:
        found = (
            self._before.get(tensor.untyped_storage()._cdata) if isinstance(tensor, torch.Tensor) else None
        )
        if found is None or found[0].expired():
            return None
        return found[1].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def beside(self, made: Mapping[str, InUse]) -> dict[str, InUse]:
        """Return the modules in which the script itself casts, without those that a library made."""
        inside = tuple(f"{path}." for path, layer in made.items() if layer.library != BY_HAND)
        return {one.module: one for one in self.in_use() if not f"{one.module}.".startswith(inside)}

    def in_use(self) -> Iterator[InUse]:
        """Yield the modules in which that was done, with what it lost."""
        places = [*self._casts, *((*key, "") for key in self._products)]
        for module in dict.fromkeys(place[0] for place in places):
            notes = [_cast_words(place, one) for place, one in self._casts.items() if place[0] == module]
            notes += [_product_words(key, one) for key, one in self._products.items() if key[0] == module]
            yield InUse(module, BY_HAND, note=f"{module or 'the loss'} at first: {'; '.join(notes)}")


def _in_bf16(held: torch.Tensor | None, scale: Any) -> torch.Tensor:
    if held is None:
        raise TypeError("the operand was cast elsewhere")
    wide: torch.Tensor = held * scale.float()
    return wide.bfloat16()


def _cast_words(place: _Place, cast: _Cast) -> str:
    _, phase, name = place
    live, zero, cut, error, energy = cast.sums.tolist()
    lost = f"{percent(zero / live if live else 0.0)} become zero, {percent(cut / live if live else 0.0)} are cut off"
    off = percent((error / energy) ** 0.5 if energy else 0.0)
    return f"{plural(cast.count, 'cast')} to {name} in the {phase}: {lost}, off by {off}"


def _product_words(key: tuple[str, str], product: _Product) -> str:
    error, energy = product.sums.tolist()
    judged = product.count - product.unknown
    shown = [f"{plural(product.count, 'product')} in the {key[1]}"]
    if judged:
        shown.append(f"off by {percent((error / energy) ** 0.5 if energy else 0.0)} against bf16")
    if product.unknown:
        shown.append(f"{product.unknown} not compared, since their operands were cast elsewhere or by blocks")
    return ", ".join(shown)
