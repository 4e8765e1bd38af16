"""What a GPU has said of the bench's predictions: read from a file that tests/gpu/claims.py writes, never by hand."""

import json
from functools import cache
from importlib.resources import files


def confirmation(what: str) -> str:
    """Return how far predicted memory or time was off on a GPU, or that none has confirmed it."""
    found = _figures()
    return (
        f"on {found['machine']} it was off by {found[what]}" if what in found else "no GPU has confirmed it"
    )


@cache
def _figures() -> dict[str, str]:
    return dict(json.loads(files("ampcheck.bench").joinpath("confirmed.json").read_text(encoding="utf-8")))
