"""What a value may hold, by the types of its fields: a file from elsewhere may hold anything.

Every field of a loaded report is looked at once, so that nothing that reads it later has to.
"""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

#: Characters in one text, items in one list, and the size of a whole number.
TEXT, ITEMS, WHOLE = 1 << 20, 1 << 22, 1 << 62
#: Powers of two that a float64 can come near to.
EXPONENT = 2048
_EXPONENTS = frozenset({"lowest", "log2_scale", "refused_scales"})
#: Sums of squares and sizes.
_SIZES = frozenset({"error_squares", "reference_squares", "sum_squares", "amax"})
#: Words that a message shows of a value.
_SHOWN = 40

Check = Callable[[Any], None]


def check(value: Any) -> None:
    """Refuse a value whose fields, or those of the values in it, are not what their types say."""
    kind: Any = type(value)
    _check_of(kind)(value)


@functools.cache
def _check_of(hint: Any, name: str = "") -> Check:
    """Return what looks at values of a type; `name` is the field that they stand in."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(hint, [_check_of(one, name) for one in inner])
    if origin is tuple and inner[-1:] == (Ellipsis,):
        return _row(_check_of(inner[0], name), name)
    if origin is tuple:
        return _several([_check_of(one, name) for one in inner], name)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_check_of(inner[0], name), _check_of(inner[1], name), name)
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        return _fields(hint)
    return _plain(hint, name)


def _plain(hint: Any, name: str) -> Check:
    fits, expected = _PLAIN.get(
        hint, (_is_known, "a known word") if _is_enum(hint) else (_is_short, "a value")
    )
    if hint is int and name in _EXPONENTS:
        fits, expected = _is_exponent, f"an exponent of at most {EXPONENT:,}"
    if hint is float and name in _SIZES:
        return lambda value: _expect(_is_number(value, hint) and not value < 0, name, "a size", value)
    return lambda value: _expect(fits(value, hint), name, expected, value)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _is_known(value: Any, hint: Any) -> bool:
    return isinstance(value, hint)


def _is_text(value: Any, _: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT


def _is_whole(value: Any, _: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -WHOLE <= value <= WHOLE


def _is_exponent(value: Any, _: Any) -> bool:
    return _is_whole(value, _) and -EXPONENT <= value <= EXPONENT


def _is_number(value: Any, _: Any) -> bool:
    return isinstance(value, float) or _is_whole(value, _)


def _is_short(value: Any, _: Any) -> bool:
    return value is None or isinstance(value, bool) or _is_text(value, _) or _is_number(value, _)


#: What a value of a type has to be, and what that is called.
_PLAIN: dict[Any, tuple[Callable[[Any, Any], bool], str]] = {
    str: (_is_text, f"a text of at most {TEXT:,} characters"),
    bool: (_is_known, "true or false"),
    int: (_is_whole, "a whole number of at most 62 bits"),
    float: (_is_number, "a number"),
    types.NoneType: (_is_known, "nothing"),
}


def _either(hint: Any, checks: list[Check]) -> Check:
    def look(value: Any) -> None:
        for one in checks[:-1]:
            try:
                one(value)
            except ValueError:
                continue
            return
        checks[-1](value)

    optional = types.NoneType in get_args(hint)
    kept = [one for one, kind in zip(checks, get_args(hint), strict=True) if kind is not types.NoneType]
    if optional and len(kept) == 1:
        return lambda value: None if value is None else kept[0](value)
    return look


def _row(item: Check, name: str) -> Check:
    def look(value: Any) -> None:
        _expect(isinstance(value, (tuple, list)) and len(value) <= ITEMS, name, "a list", value)
        for one in value:
            item(one)

    return look


def _several(items: list[Check], name: str) -> Check:
    def look(value: Any) -> None:
        _expect(isinstance(value, (tuple, list)) and len(value) == len(items), name, "a list", value)
        for item, one in zip(items, value, strict=True):
            item(one)

    return look


def _mapping(key: Check, item: Check, name: str) -> Check:
    def look(value: Any) -> None:
        _expect(isinstance(value, Mapping) and len(value) <= ITEMS, name, "an object", value)
        for one, held in value.items():
            key(one)
            item(held)

    return look


def _fields(kind: Any) -> Check:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    checks = [(name, _check_of(hints[name], name)) for name in names]

    def look(value: Any) -> None:
        _expect(isinstance(value, kind), kind.__name__, f"a {kind.__name__}", value)
        for name, one in checks:
            one(getattr(value, name))

    return look


def _expect(fits: bool, name: str, expected: str, value: Any) -> None:  # noqa: FBT001
    if not fits:
        shown = (
            f"{value.bit_length()} bits long" if type(value) is int and abs(value) > WHOLE else repr(value)
        )
        short = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        raise ValueError(f"{name or 'value'} is {short} and not {expected}")
