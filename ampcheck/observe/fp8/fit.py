"""What is known of a recipe and a model before anything runs: dimensions that do not fit, layers a library misses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ampcheck.observe.model.structure import is_lazy, named_modules
from ampcheck.values.recipes import Recipe
from ampcheck.values.wording import some

_LINEAR = torch.nn.Linear
_MATRIX = 2
#: Layers that a sentence names.
_NAMED = 8
#: Its weight is used by the attention around it, which calls F.linear itself.
_NEVER_CALLED = torch.nn.modules.linear.NonDynamicallyQuantizableLinear


def known_before(model: Any, chosen: Sequence[Recipe]) -> Iterator[str]:
    """Yield what is sure of recipes and a model before a step of it runs, by name."""
    shapes = linear_shapes(model)
    same: dict[tuple[tuple[str, ...], str, bool], list[Recipe]] = {}
    for one in chosen:
        places = tuple(f"{name or 'the root'} ({why})" for name, why in misfits(one, shapes, {}).items())
        if places:
            same.setdefault((places, one.library, one.raises), []).append(one)
    for (places, library, raises), ones in same.items():
        does = "raises there" if raises else "leaves them in bf16, or pads them"
        yield f"{', '.join(one.name for one in ones)}: {library} {does}: {some(places, _NAMED)}"
    swapping = [one for one in chosen if one.library == "torchao"]
    for name, why in missed_by_swapping(model, {}).items() if swapping else ():
        yield f"torchao's conversion: {name or 'the root'} {why}"
    yield from dict.fromkeys(text for one in swapping for text in chosen_by_frameworks(one, model))


def misfits(recipe: Recipe, layers: Mapping[str, tuple[int, ...]], rows: Mapping[str, int]) -> dict[str, str]:
    """Return the layers whose dimensions a recipe cannot take, and which these are."""
    found = {}
    for name, shape in layers.items():
        wide, deep = shape[-2], shape[-1]
        if wide % recipe.multiple or deep % recipe.multiple:
            found[name] = f"{deep} -> {wide} is no multiple of {recipe.multiple}"
        elif rows.get(name, 0) % recipe.tokens:
            found[name] = f"{rows[name]} rows are no multiple of {recipe.tokens}"
    return found


def linear_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a model's linear layers, by module, without running it."""
    return {
        path: tuple(module.weight.shape)
        for path, module in _linears(model)
        if not is_lazy(module.weight) and module.weight.dim() == _MATRIX
    }


def missed_by_swapping(model: Any, layers: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return what a library that swaps nn.Linear modules does not reach, or breaks, and why, by module."""
    linears = dict(_linears(model))
    found = {}
    for path, module in linears.items():
        if type(module).__module__.partition(".")[0] == "torchao":
            continue  # it was converted already
        if isinstance(module, _NEVER_CALLED):
            found[path] = "is converted, but its forward never runs: attention uses its weight directly"
        elif type(module).forward is not _LINEAR.forward:
            found[path] = (
                f"is a {type(module).__name__} with a forward of its own, which the conversion drops"
            )
    for path in layers:
        if path not in linears:
            found[path] = "multiplies with a weight outside of any nn.Linear, so it is not converted"
    return found


def chosen_by_frameworks(recipe: Recipe, model: Any) -> Iterator[str]:
    """Yield what frameworks' own filters do with a model's layers under a recipe, whatever was asked for."""
    names = [path for path, _ in _linears(model)]
    if recipe.library != "torchao" or not names:
        return
    ends = " and ".join(dict.fromkeys((names[0] or "the root", names[-1] or "the root")))
    yield (
        f"Accelerate without a filter leaves {ends} in bf16, the first and the last linear layer; its "
        "filter_first_and_last_linear_layers, passed by name, leaves out none: it looks for them inside each layer"
    )
    if recipe.name.startswith("ao-rowwise"):
        yield "torchtitan's emulate=True drops the recipe: it emulates tensorwise"


def _linears(model: Any) -> Iterator[tuple[str, torch.nn.Linear]]:
    seen: set[int] = set()
    for path, module in named_modules(model):
        if isinstance(module, _LINEAR) and id(module) not in seen:
            seen.add(id(module))
            yield path, module
