"""JSON with a line for each object in a list, so that two files can be compared by line."""

import json
from collections.abc import Mapping
from typing import Any


def lines(value: Mapping[str, Any], pad: str = "") -> str:
    """Return an object with a line for each key and for each object in a list."""
    body = ",\n".join(f"{pad} {json.dumps(key)}: {_member(item, pad + ' ')}" for key, item in value.items())
    return f"{{\n{body}\n{pad}}}"


def _member(value: Any, pad: str) -> str:
    if isinstance(value, dict) and "sites" in value:
        return lines(value, pad)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"{pad} {_compact(item)}" for item in value) + f"\n{pad}]"
    return _compact(value)


_compact = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
