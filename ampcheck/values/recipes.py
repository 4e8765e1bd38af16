"""FP8 and FP4 training recipes as data: which operand of which GEMM is rounded how.

A linear layer y = x w^T trains with three GEMMs: fprop (x, w), dgrad (dy, w) and wgrad (dy, x). A recipe says how
each of their six operands is cast; what lies around them stays in bf16. Sums are FP32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

#: What a precision begins with that names a recipe.
PREFIX = "fp8"
GEMMS = ("fprop", "dgrad", "wgrad")
OPERANDS = ("input", "weight", "grad_output")
#: The two operands of each GEMM, by their names.
OPERANDS_OF = {
    "fprop": ("input", "weight"),
    "dgrad": ("grad_output", "weight"),
    "wgrad": ("grad_output", "input"),
}


class Grain(StrEnum):
    """Which elements share a scale."""

    TENSOR = "tensor"
    ROW = "row"  #: one scale for each row along the contraction
    BLOCK = "block"  #: `block` elements along the contraction
    SQUARE = "square"  #: `block` x `block` elements


class Scaling(StrEnum):
    """What a scale may be."""

    EXACT = "exact"  #: max / amax in FP32
    POWER_DOWN = "power of two, rounded down"
    E8M0_UP = "E8M0, so that nothing saturates"
    E8M0_FLOOR = "E8M0, the power of two of amax"
    NVFP4 = "E4M3 for a block, FP32 for the tensor"


@dataclass(frozen=True, slots=True)
class History:
    """Delayed scaling: the scale comes from the largest magnitudes of earlier steps."""

    length: int = 1024
    most_recent: bool = False  #: from the last step alone, else the largest of the history
    margin: int = 0  #: powers of two of head room


@dataclass(frozen=True, slots=True)
class Cast:
    """How one operand of a GEMM is rounded."""

    format: str  #: e4m3, e5m2 or e2m1
    grain: Grain = Grain.TENSOR
    scaling: Scaling = Scaling.EXACT
    block: int = 0
    least: float = 0.0  #: amax counts as this at least
    history: History | None = None
    hadamard: bool = False  #: a fixed random Hadamard transform of 16 elements before the cast
    stochastic: bool = False  #: rounded up or down by chance, without bias


#: Generations of hardware that have formats of eight bits, the oldest first.
HARDWARE = ("sm_89", "sm_90", "sm_100")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the operands of the three GEMMs are rounded; an operand that is not named stays in bf16."""

    name: str
    title: str  #: in its library's own words
    library: str
    casts: Mapping[tuple[str, str], Cast] = field(hash=False)  #: by GEMM and operand
    multiple: int = 16  #: of which both dimensions of a weight have to be
    tokens: int = 1  #: of which the number of rows has to be
    raises: bool = False  #: other dimensions raise; else the layer is left in bf16, or padded
    hardware: str = "sm_89"  #: the oldest that has it

    @property
    def delayed(self) -> bool:
        """Tell whether scales come from earlier steps."""
        return any(cast.history is not None for cast in self.casts.values())

    @property
    def history(self) -> History:
        """Return how scales come from earlier steps, of a recipe that is delayed."""
        return next(cast.history for cast in self.casts.values() if cast.history is not None)

    @property
    def four_bit(self) -> bool:
        """Tell whether operands have four bits."""
        return any(cast.format == "e2m1" for cast in self.casts.values())

    @property
    def in_bf16(self) -> tuple[str, ...]:
        """Return the GEMMs that the recipe leaves in bf16."""
        quantised = {gemm for gemm, _ in self.casts}
        return tuple(gemm for gemm in GEMMS if gemm not in quantised)


def _all(inputs: Cast, weights: Cast, grads: Cast) -> dict[tuple[str, str], Cast]:
    kinds = dict(zip(OPERANDS, (inputs, weights, grads), strict=True))
    return {(gemm, name): kinds[name] for gemm in GEMMS for name in OPERANDS_OF[gemm]}


def _tensorwise(
    least: float = 0.0, grads: str = "e5m2", history: History | None = None
) -> dict[tuple[str, str], Cast]:
    wide = Cast("e4m3", least=least, history=history)
    return _all(wide, wide, replace(wide, format=grads))


_AO_LEAST = 1e-12
_ROW = Cast("e4m3", Grain.ROW, Scaling.POWER_DOWN, least=_AO_LEAST)
_MX = Cast("e4m3", Grain.BLOCK, Scaling.E8M0_UP, 32)
_MX_FLOOR = replace(_MX, scaling=Scaling.E8M0_FLOOR)
_BLOCK = Cast("e4m3", Grain.BLOCK, Scaling.POWER_DOWN, 128)
_SQUARE = replace(_BLOCK, grain=Grain.SQUARE)
_DEEP = replace(_BLOCK, scaling=Scaling.EXACT)
_NV = Cast("e2m1", Grain.BLOCK, Scaling.NVFP4, 16)
_NV_GRAD = replace(_NV, stochastic=True)


def _gw_hp() -> dict[tuple[str, str], Cast]:
    casts = _all(_ROW, _ROW, _ROW)
    casts["dgrad", "weight"] = replace(_ROW, grain=Grain.TENSOR)
    del casts["wgrad", "input"], casts["wgrad", "grad_output"]
    return casts


def _nvfp4() -> dict[tuple[str, str], Cast]:
    casts = _all(_NV, replace(_NV, grain=Grain.SQUARE), _NV_GRAD)
    casts["wgrad", "input"] = replace(_NV, hadamard=True)
    casts["wgrad", "grad_output"] = replace(_NV_GRAD, hadamard=True)
    return casts


_MXFP8 = _all(_MX, _MX, _MX)
_BLOCKS = _all(_BLOCK, _SQUARE, _BLOCK)
_DEEPSEEK = _all(_DEEP, replace(_DEEP, grain=Grain.SQUARE), _DEEP)
_AO, _TE = "torchao", "TransformerEngine"
_HOPPER, _BLACKWELL = "sm_90", "sm_100"
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("ao-tensorwise", "Float8LinearConfig, tensorwise", _AO, _tensorwise(_AO_LEAST)),
        Recipe("ao-rowwise", "Float8LinearConfig, rowwise", _AO, _all(_ROW, _ROW, _ROW), hardware=_HOPPER),
        Recipe("ao-rowwise-gw-hp", "Float8LinearConfig, rowwise_with_gw_hp", _AO, _gw_hp(), hardware=_HOPPER),
        Recipe("ao-mxfp8", "MXFP8, 1x32, RCEIL", _AO, _MXFP8, 32, 32, raises=True, hardware=_BLACKWELL),
        Recipe("te-current", "Float8CurrentScaling, HYBRID", _TE, _tensorwise(), 16, 8, raises=True),
        Recipe(
            "te-current-e4m3",
            "Float8CurrentScaling, E4M3",
            _TE,
            _tensorwise(grads="e4m3"),
            16,
            8,
            raises=True,
        ),
        Recipe(
            "te-delayed", "DelayedScaling, HYBRID", _TE, _tensorwise(history=History()), 16, 8, raises=True
        ),
        Recipe("te-block", "Float8BlockScaling", _TE, _BLOCKS, 128, 128, raises=True, hardware=_HOPPER),
        Recipe("te-mxfp8", "MXFP8BlockScaling", _TE, _MXFP8, 32, 32, raises=True, hardware=_BLACKWELL),
        Recipe("te-nvfp4", "NVFP4BlockScaling", _TE, _nvfp4(), 16, 16, raises=True, hardware=_BLACKWELL),
        Recipe(
            "deepseek-v3",
            "1x128 and 128x128 with FP32 scales",
            "DeepSeek",
            _DEEPSEEK,
            128,
            128,
            hardware=_HOPPER,
        ),
    )
}
_OPTIONS = "te-delayed:most_recent, te-delayed:history=16,margin=1 and ao-mxfp8:floor"


def recipes(precision: str) -> tuple[Recipe, ...]:
    """Return the recipes that a precision names: fp8:te-delayed:most_recent one of them, fp8 all.

    >>> [recipe.name for recipe in recipes("fp8:te-delayed:most_recent,margin=1")]
    ['te-delayed:most_recent,margin=1']
    """
    prefix, _, name = precision.partition(":")
    if prefix != PREFIX:
        raise ValueError(f"expected a precision that begins with {PREFIX}, got {precision!r}")
    return (recipe(name),) if name else tuple(RECIPES.values())


def recipe(name: str) -> Recipe:
    """Return the recipe of a name, with what follows a second colon."""
    base, _, options = name.partition(":")
    if base not in RECIPES:
        raise ValueError(f"expected a recipe of {', '.join(RECIPES)}, got {base!r}")
    found = RECIPES[base]
    for option in filter(None, options.split(",")):
        found = _with(found, option)
    return replace(found, name=name) if options else found


def is_recipe(precision: str) -> bool:
    """Tell whether a precision names one recipe, or all of them."""
    return precision == PREFIX or precision.startswith(f"{PREFIX}:")


def _with(found: Recipe, option: str) -> Recipe:
    """Return a recipe with one option."""
    key, _, value = option.partition("=")
    number = int(value) if value.isdecimal() else None
    if found.delayed and key in ("most_recent", "history", "margin"):
        history = found.history
        if key == "most_recent" and not value:
            return _rescaled(found, replace(history, most_recent=True))
        if key == "margin" and number is not None:
            return _rescaled(found, replace(history, margin=number))
        if key == "history" and number:
            return _rescaled(found, replace(history, length=number))
    if found.name == "ao-mxfp8" and option == "floor":
        return replace(found, casts=_all(_MX_FLOOR, _MX_FLOOR, _MX_FLOOR), title="MXFP8, 1x32, FLOOR")
    raise ValueError(f"expected an option such as {_OPTIONS}, got {option!r} for {found.name}")


def _rescaled(found: Recipe, history: History) -> Recipe:
    return replace(found, casts={key: replace(cast, history=history) for key, cast in found.casts.items()})
