"""Runs something right after a module is first imported, so that a script's own imports stay its own."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Run `then` once a module has been imported, now if it has; return what takes the wait back."""
    if name in sys.modules:
        then()
        return lambda: None
    waiting = _Waiting(name, then)
    sys.meta_path.insert(0, waiting)
    return waiting.leave


class _Waiting(MetaPathFinder):
    """Finds one module, as the other finders do, and runs something after it."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._asking = False

    def leave(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of the module waited for, with a loader that tells when it is there."""
        if fullname != self._name or self._asking:
            return None
        # Who asks may only want to know whether the module is installed: the wait goes on until it is executed.
        self._asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._executed)
        return spec

    def _executed(self) -> None:
        if self in sys.meta_path:
            self.leave()
            self._then()


class _Telling(Loader):
    """A loader that runs something when its module has been executed."""

    def __init__(self, loader: Loader, then: Callable[[], None]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        """Return what the real loader has: whoever asks for a spec may read on there."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the real loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module; afterwards it has its own loader back."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
