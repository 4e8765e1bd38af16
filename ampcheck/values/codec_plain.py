"""Single values as JSON and back: texts, numbers, truths and words. What is read is checked."""

import math
import types
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

Json = dict[str, Any]

#: Characters in one text, items in one list, and the size of a whole number.
TEXT, ITEMS, WHOLE = 1 << 20, 1 << 22, 1 << 62
#: Powers of two that a float64 can come near to.
EXPONENT = 2048
EXPONENTS = frozenset({"lowest", "log2_scale", "refused_scales"})
_NOT_FINITE = ("inf", "-inf", "nan")
#: Characters that a message shows of a value.
_SHOWN = 40


class Codec(NamedTuple):
    """How values of one type are written and read, and the JSON Schema of them."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    schema: Json


def number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else str(float(value))


def same(value: Any) -> Any:
    """Return a value as it is."""
    return value


def plain_codec(fits: Callable[[Any], bool], expected: str, schema: Json, name: str) -> Codec:
    """Return the codec of values that JSON has as they are."""

    def read(value: Any) -> Any:
        return value if fits(value) else refuse(name, expected, value)

    return Codec(same, read, schema)


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= TEXT


def _is_whole(value: Any) -> bool:
    return type(value) is int and -WHOLE <= value <= WHOLE


def is_exponent(value: Any) -> bool:
    """Tell whether a value is a power of two that a number can have."""
    return type(value) is int and -EXPONENT <= value <= EXPONENT


def _number(name: str) -> Codec:
    def read(value: Any) -> float:
        if type(value) is float or _is_whole(value) or value in _NOT_FINITE:
            return float(value)
        return float(refuse(name, "a number", value))

    return Codec(number, read, {"anyOf": [{"type": "number"}, {"enum": list(_NOT_FINITE)}]})


PLAIN: dict[Any, Callable[[str], Codec]] = {
    str: lambda name: plain_codec(
        _is_text, f"a text of at most {TEXT:,} characters", {"type": "string"}, name
    ),
    bool: lambda name: plain_codec(
        lambda value: type(value) is bool, "true or false", {"type": "boolean"}, name
    ),
    int: lambda name: plain_codec(_is_whole, "a whole number of at most 62 bits", {"type": "integer"}, name),
    float: _number,
    types.NoneType: lambda name: plain_codec(lambda value: value is None, "null", {"type": "null"}, name),
}


def word_codec(kind: type[Enum], name: str) -> Codec:
    """Return the codec of an enumeration's words."""
    known = {str(member): member for member in kind}

    def read(value: Any) -> Any:
        found = known.get(value) if type(value) is str else None
        return refuse(name, f"one of {', '.join(known)}", value) if found is None else found

    return Codec(str, read, {"enum": list(known)})


def listed(value: Any, name: str) -> Any:
    """Return a list; anything else is refused."""
    return value if type(value) is list and len(value) <= ITEMS else refuse(name, "a list", value)


def refuse(name: str, expected: str, value: Any) -> Any:
    """Raise ValueError: which field holds what, and what it must be."""
    shown = f"{value.bit_length()} bits long" if type(value) is int and abs(value) > WHOLE else repr(value)
    short = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    raise ValueError(f"{name or 'value'} is {short} and not {expected}")
