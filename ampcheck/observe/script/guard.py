"""What keeps a script going where watching it fails."""

import functools
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ampcheck.loop import GAVE_IN

Told = TypeVar("Told", bound=Callable[..., Any])


def guarded(method: Told) -> Told:
    """Let a script go on, unwatched, where watching it fails: the watcher gives in."""

    @functools.wraps(method)
    def tell(watcher: Any, *args: Any, **kwargs: Any) -> Any:
        if watcher.broken:
            return None
        try:
            return method(watcher, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the script
            watcher.give_in(error)
            return None

    return tell  # type: ignore[return-value]  # it takes the place of the method


def told(error: Exception) -> str:
    """Return what is not seen because of an error, and where that was."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{GAVE_IN}: {type(error).__name__}: {error} ({where})"
