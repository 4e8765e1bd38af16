"""Values as JSON and back, by the types of their fields: one way for everything that is saved.

An object is written field by field under the fields' names. Numbers JSON has no word for are the texts "inf",
"-inf" and "nan". A mapping whose keys are objects is a list, each entry the fields of its key and of its value.
What is read is checked on the way: a file from elsewhere may hold anything.
"""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ampcheck.values.codec_plain import (
    EXPONENT,
    EXPONENTS,
    ITEMS,
    PLAIN,
    Codec,
    Json,
    is_exponent,
    listed,
    number,
    plain_codec,
    refuse,
    same,
    word_codec,
)

Value = TypeVar("Value")


class Shape(NamedTuple):
    """How an object of a class is written where that is not field by field. A class has it as `JSON`."""

    sparse: bool = False  #: every field is left out that holds its default
    optional: tuple[str, ...] = ()  #: these are
    names: Mapping[str, str] = types.MappingProxyType({})  #: what fields are called in JSON
    row: bool = False  #: it is a list of its fields
    spread: str = ""  #: a field whose own fields stand beside the others
    #: what is written for readers, and not read back: the type of each, and what returns it
    also: Mapping[str, tuple[Any, Callable[[Any], Any]]] = types.MappingProxyType({})


#: Of objects that there are thousands of.
SPARSE = Shape(sparse=True)


class _Field(NamedTuple):
    """One field of an object."""

    name: str
    key: str  #: its name in JSON
    codec: Codec
    default: Any  #: MISSING, or what returns it
    optional: bool

    @property
    def unwritten(self) -> Any:
        """Return the value that is left out; nothing is equal to it where every value is written."""
        return self.default() if self.optional and not self.required else MISSING

    @property
    def required(self) -> bool:
        """Tell whether an object cannot be read without it."""
        return self.default is MISSING


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    kind: Any = type(value)
    return codec(kind).write(value)


def from_plain(kind: type[Value], data: Any) -> Value:
    """Return the value of a type that JSON stands for; ValueError says which field is not what it must be."""
    wanted: Any = kind
    made: Value = codec(wanted).read(data)
    return made


def definitions(kind: type) -> Json:
    """Return the JSON Schema of every class that a class is made of, by name."""
    found: Json = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        if one.__name__ not in found:
            found[one.__name__] = _definition(one)
            waiting += _classes_in([*_hints(one).values(), *(hint for hint, _ in _shape(one).also.values())])
    return dict(sorted(found.items()))


@functools.cache
def codec(hint: Any, name: str = "") -> Codec:
    """Return the codec of a type; `name` is the field that holds it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(inner, name)
    if origin is not None:
        return _held_by(origin, inner, name)
    if _is_object(hint):
        return _object(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return word_codec(hint, name)
    if hint is int and name in EXPONENTS:
        return plain_codec(is_exponent, f"an exponent of at most {EXPONENT:,}", {"type": "integer"}, name)
    return PLAIN[hint](name)


def _held_by(origin: Any, inner: tuple[Any, ...], name: str) -> Codec:
    """Return the codec of a tuple or a mapping."""
    if issubclass(origin, Mapping):
        return (_table if _is_object(inner[0]) else _mapping)(inner[0], inner[1], name)
    if inner[-1] is Ellipsis:
        return _row(codec(inner[0], name), name)
    return _several([codec(one, name) for one in inner], name)


def _is_object(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields"))


def _either(hints: tuple[Any, ...], name: str) -> Codec:
    kept = [hint for hint in hints if hint is not types.NoneType]
    codecs = [codec(hint, name) for hint in kept]
    schema = {"anyOf": [one.schema for one in codecs] + [{"type": "null"}] * (len(kept) < len(hints))}
    if len(kept) == 1:
        only = codecs[0]
        return Codec(
            lambda value: None if value is None else only.write(value),
            lambda value: None if value is None else only.read(value),
            schema,
        )

    def read(value: Any) -> Any:
        for one in codecs[:-1]:
            try:
                return one.read(value)
            except ValueError:
                continue
        return codecs[-1].read(value)

    return Codec(lambda value: number(value) if type(value) is float else value, read, schema)


def _row(item: Codec, name: str) -> Codec:
    def write(value: Any) -> list[Any]:
        return list(value) if item.write is same else [item.write(one) for one in value]

    def read(value: Any) -> tuple[Any, ...]:
        return tuple(map(item.read, listed(value, name)))

    return Codec(write, read, {"type": "array", "items": item.schema})


def _several(items: list[Codec], name: str) -> Codec:
    def write(value: Any) -> list[Any]:
        return [item.write(one) for item, one in zip(items, value, strict=True)]

    def read(value: Any) -> tuple[Any, ...]:
        if len(listed(value, name)) != len(items):
            refuse(name, f"a list of {len(items)}", value)
        return tuple(item.read(one) for item, one in zip(items, value, strict=True))

    schema = {"type": "array", "prefixItems": [item.schema for item in items], "items": False}
    return Codec(write, read, schema | {"minItems": len(items)})


def _mapping(key: Any, item: Any, name: str) -> Codec:
    keys, items = codec(key, name), codec(item, name)

    def write(value: Any) -> Json:
        return {keys.write(one): items.write(held) for one, held in value.items()}

    def read(value: Any) -> Json:
        if type(value) is not dict or len(value) > ITEMS:
            refuse(name, "an object", value)
        return {keys.read(one): items.read(held) for one, held in value.items()}

    return Codec(write, read, {"type": "object", "additionalProperties": items.schema})


def _table(key: type, item: Any, name: str) -> Codec:
    """Return the codec of a mapping whose keys are objects: a list of rows."""
    keys, value = codec(key), codec(item, name)
    parts: list[Json] = [{"$ref": f"#/$defs/{key.__name__}"}]
    if _is_object(item):
        write, read, parts = value.write, value.read, [*parts, {"$ref": f"#/$defs/{item.__name__}"}]
    else:
        write, read = (lambda held: {name: value.write(held)}), (lambda row: value.read(row.get(name)))
        parts = [*parts, {"properties": {name: value.schema}, "required": [name]}]

    def rows(held: Any) -> list[Json]:
        return [keys.write(one) | write(of) for one, of in held.items()]

    def held(rows: Any) -> dict[Any, Any]:
        return {keys.read(row): read(row) for row in listed(rows, name)}

    return Codec(rows, held, {"type": "array", "items": {"allOf": parts}})


def _object(kind: Any) -> Codec:
    shape = _shape(kind)
    own = _fields_of(kind)
    if shape.row:
        return _as_row(kind, own)
    rows = [(one.name, one.key, one.codec.write, one.unwritten) for one in own if one.name != shape.spread]
    spread = [(one.name, one.codec.write) for one in own if one.name == shape.spread]
    also = [(key, codec(hint, key).write, of) for key, (hint, of) in shape.also.items()]

    def write(value: Any) -> Json:
        made: Json = {}
        for name, way in spread:
            made |= way(getattr(value, name))
        for name, key, way, unwritten in rows:
            item = getattr(value, name)
            if item != unwritten:
                made[key] = way(item)
        for key, way, of in also:
            made[key] = way(of(value))
        return made

    def read(item: Any) -> Any:
        if type(item) is not dict:
            refuse(kind.__name__, "an object", item)
        return kind(*[_held(item, one, kind, spread=one.name == shape.spread) for one in own])

    return Codec(write, read, {"$ref": f"#/$defs/{kind.__name__}"})


def _as_row(kind: Any, own: list[_Field]) -> Codec:
    row = _several([one.codec for one in own], kind.__name__)
    return Codec(
        lambda value: row.write([getattr(value, one.name) for one in own]),
        lambda item: kind(*row.read(item)),
        row.schema,
    )


def _held(item: Json, field: _Field, kind: type, *, spread: bool) -> Any:
    if spread:
        return field.codec.read(item)
    value = item.get(field.key, MISSING)
    if value is not MISSING:
        return field.codec.read(value)
    if field.required:
        raise ValueError(f"a {kind.__name__} has no {field.key}")
    return field.default()


def _shape(kind: Any) -> Shape:
    shape: Shape = getattr(kind, "JSON", Shape() if is_dataclass(kind) else SPARSE)
    return shape


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else list(kind._fields)
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


@functools.cache
def _fields_of(kind: Any) -> list[_Field]:
    shape, defaults = _shape(kind), _defaults(kind)
    return [
        _Field(
            name,
            shape.names.get(name, name),
            codec(hint, name),
            defaults.get(name, MISSING),
            shape.sparse or name in shape.optional,
        )
        for name, hint in _hints(kind).items()
    ]


def _defaults(kind: Any) -> dict[str, Callable[[], Any]]:
    """Return what makes the default of each field that has one."""
    if not is_dataclass(kind):
        return {name: functools.partial(same, value) for name, value in kind._field_defaults.items()}
    return {
        one.name: functools.partial(same, one.default)
        if one.default_factory is MISSING
        else one.default_factory
        for one in fields(kind)
        if one.default is not MISSING or one.default_factory is not MISSING
    }


def _definition(kind: type) -> Json:
    shape, parts = _shape(kind), _fields_of(kind)
    own = [one for one in parts if one.name != shape.spread]
    also = {key: codec(hint, key).schema for key, (hint, _) in shape.also.items()}
    made: Json = {
        "description": (kind.__doc__ or "").partition("\n")[0],
        "type": "object",
        "properties": {one.key: one.codec.schema for one in own} | also,
        "required": [one.key for one in own if one.required or not one.optional] + list(also),
    }
    spread = [one.codec.schema for one in parts if one.name == shape.spread]
    return made | ({"allOf": spread} if spread else {})


def _classes_in(hints: Any) -> list[type]:
    found: list[type] = []
    for hint in hints:
        found += [hint] if _is_object(hint) else _classes_in(get_args(hint))
    return found
