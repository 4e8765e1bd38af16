"""The compiled extension, where there is one that belongs to these sources."""

import contextlib
import importlib
import os
import sys
import sysconfig
import warnings
from typing import Any, Final

#: As in _exphist.c: one more whenever what the extension takes or returns changes.
INTERFACE: Final = 7


def load() -> Any:
    """Return the extension, or None where it was not built, or built from other sources and not again since."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        # It cannot be built there, and to import it would switch the lock on for the whole process.
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors, this one is none
            warnings.warn(
                "ampcheck: this Python is free-threaded: its compiled path is not used, recording is slower",
                RuntimeWarning,
                stacklevel=2,
            )
        return None
    # The kernel takes little-endian words for granted. The switch is for comparing both ways.
    if sys.byteorder == "little" and os.environ.get("AMPCHECK_COMPILED") != "0":
        with contextlib.suppress(ImportError):  # there was no compiler when the package was installed
            found = importlib.import_module("ampcheck.observe._exphist")
            return found if getattr(found, "INTERFACE", 0) == INTERFACE else None
    return None


NATIVE: Final[Any] = load()
