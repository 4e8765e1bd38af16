"""The compiled extension, where there is one that belongs to these sources."""

import contextlib
import importlib
import os
import sys
from typing import Any, Final

#: As in _exphist.c: one more whenever what the extension takes or returns changes.
INTERFACE: Final = 3


def load() -> Any:
    """Return the extension, or None where it was not built, or built from other sources and not again since."""
    # The kernel takes little-endian words for granted. The switch is for comparing both ways.
    if sys.byteorder == "little" and os.environ.get("AMPCHECK_COMPILED") != "0":
        with contextlib.suppress(ImportError):  # there was no compiler when the package was installed
            found = importlib.import_module("ampcheck.observe._exphist")
            return found if getattr(found, "INTERFACE", 0) == INTERFACE else None
    return None


NATIVE: Final[Any] = load()
