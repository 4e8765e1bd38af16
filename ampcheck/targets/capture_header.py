"""What a capture says of itself before its tensors: read without torch."""

import json
import os
from pathlib import Path

from ampcheck.errors import TargetError

#: Bytes of a header that are read.
_LONGEST = 100_000_000


def target_of(path: Path) -> str:
    """Return the target that a capture names, as seen from the present folder."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            about = json.loads(file.read(size)).get("__metadata__", {}) if size < _LONGEST else {}
    except (OSError, ValueError) as error:
        raise TargetError(f"expected a capture, could not read {str(path)!r}: {error}") from error
    named, _, name = str(about.get("target", "")).rpartition(":")
    if not named:
        raise TargetError(
            f"{str(path)!r} does not say where its model is", hint=f"ampcheck model.py --from {path}"
        )
    return f"{os.path.relpath(path.absolute().parent / named)}:{name}"
