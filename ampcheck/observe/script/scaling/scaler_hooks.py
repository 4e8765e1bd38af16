"""What wraps the methods of torch's GradScaler and of the classes made of it."""

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from ampcheck.observe.script.watcher import Watcher
from ampcheck.values.plan import DEFAULT_SCALE


def made(watcher: Watcher, known: Callable[[type], None], original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the constructor of scalers: it says what was asked for, and which class it was asked of."""
    names = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
    defaults = ("cuda", DEFAULT_SCALE, 2.0, 0.5, 2000, True)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it takes the place of one
        known(type(self))
        original(self, *args, **kwargs)
        asked = dict(zip(names, defaults, strict=True)) | dict(zip(names, args, strict=False)) | kwargs
        watcher.made(self, asked)

    return __init__


def _of_scaler(name: str, instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return what wraps a method of scalers; where a class's own calls that of its base, only the former counts."""

    def make(watcher: Watcher, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            key = (get_ident(), id(self), name)
            if key in watcher.within:
                return original(self, *args, **kwargs)
            watcher.within.add(key)
            try:
                return instead(watcher, original, self, *args, **kwargs)
            finally:
                watcher.within.discard(key)

        return method

    return make


def _scale(watcher: Watcher, original: Callable[..., Any], self: Any, outputs: Any) -> Any:
    watcher.scale(self, outputs)
    out = original(self, outputs)
    watcher.scaled(self, out)
    return out


def _unscale(watcher: Watcher, original: Callable[..., Any], self: Any, optimizer: Any) -> Any:
    watcher.unscale(self, optimizer)
    try:
        return original(self, optimizer)
    finally:
        watcher.unscale_ends(self)


def _scaler_step(
    watcher: Watcher, original: Callable[..., Any], self: Any, optimizer: Any, *args: Any, **kwargs: Any
) -> Any:
    watcher.scaler_step_begins(self, optimizer)
    try:
        return original(self, optimizer, *args, **kwargs)
    finally:
        watcher.scaler_step_ends(self, optimizer)


def _update(watcher: Watcher, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    watcher.update_begins(self, given=bool(args or kwargs))
    out = original(self, *args, **kwargs)
    watcher.update_ends(self)
    return out


def _get_scale(watcher: Watcher, original: Callable[..., Any], self: Any) -> Any:
    watcher.scale_read()
    return original(self)


#: What wraps the methods of a class of scalers.
OF_SCALERS = {
    "get_scale": _of_scaler("get_scale", _get_scale),
    "scale": _of_scaler("scale", _scale),
    "unscale_": _of_scaler("unscale_", _unscale),
    "step": _of_scaler("step", _scaler_step),
    "update": _of_scaler("update", _update),
}


def subclasses(kind: type) -> list[type]:
    """Return the classes made of one, at any depth."""
    own: list[type] = kind.__subclasses__()
    return [found for one in own for found in (one, *subclasses(one))]
