"""What keeps a script going where watching it fails."""

import functools
import traceback
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import set_eval_frame

from ampcheck.observe.model import gradients
from ampcheck.values.loop import ELSEWHERE, GAVE_IN, Kind

Method = TypeVar("Method", bound=Callable[..., Any])


#: Heard whichever thread it is.
_ANYWHERE = frozenset({"end", "raised", "trains"})
#: Heard in threads that are part of a recorded step.
_IN_LANES = frozenset({"scale", "scaled", "backward"})

#: Heard in threads that are not watched: optimizers may change weights there, and backwards go through old casts.
_ELSEWHERE = frozenset({"step_begins", "step_ends", "backward"})


def guarded(method: Method) -> Method:
    """Let a script go on, unwatched, where watching it fails: the watcher gives in."""
    name = method.__name__

    @functools.wraps(method)
    def tell(watcher: Any, *args: Any, **kwargs: Any) -> Any:
        thread = watcher.thread
        other = get_ident() != thread.ident and name not in _ANYWHERE
        turn = watcher.tape.turn() if other and name in _IN_LANES else None
        if watcher.broken or watcher.capturing:
            return None
        alone = other and turn is None
        elsewhere = alone and thread.elsewhere(name, idle=not watcher.backwards and watcher.tape.now is None)
        if other and not gradients.several:  # it had begun before the watch
            gradients.others_begin(thread.ident)
        if elsewhere and name not in _ELSEWHERE:
            return None
        # What calls a model beside threads that train is no step; one of these is followed as soon as it steps again.
        beside = name == "called" and not (other or watcher.backwards) and thread.others_train
        compiling = set_eval_frame(None)  # where a whole step is compiled, what is ours must not be
        try:
            if elsewhere:
                return _hear_elsewhere(watcher, name, args)
            if turn is None:
                return watcher.tape.discard() if beside else method(watcher, *args, **kwargs)
            with turn as mine:
                return method(watcher, *args, **kwargs) if mine else None
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the script
            watcher.abandon(error)
            return None
        finally:
            set_eval_frame(compiling)

    return tell  # type: ignore[return-value]  # it takes the place of the method


def surely(watcher: Any, look: Callable[..., None], *given: Any, **said: Any) -> None:
    """Look at something, and let the script go on, unwatched, where that fails."""
    try:
        look(*given, **said)
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the script
        watcher.abandon(error)


def _hear_elsewhere(watcher: Any, name: str, args: tuple[Any, ...]) -> None:
    """Let a watcher hear of another thread."""
    if name == "backward":
        if (region := watcher.thread.outlasted(args[0])) is not None:
            watcher.journal.note_at(region, Kind.STALE_CAST, name=ELSEWHERE)
    else:
        watcher.updates.elsewhere(name, *args)


def not_seen_because(error: Exception) -> str:
    """Return what is not seen because of an error, and where that was."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{GAVE_IN}: {type(error).__name__}: {error} ({where})"
