"""Keeps a step of a script that runs under `ampcheck run --save-batch FILE`."""

from pathlib import Path
from typing import Any

import torch

from ampcheck.errors import AmpcheckError
from ampcheck.targets.captured import Capture


class Saving:
    """A capture of the first model that a script trains."""

    def __init__(self, path: Path, watcher: Any) -> None:
        self._path, self._watcher = path.absolute(), watcher
        self._capture: Capture | None = None
        watcher.tape.met = self._met

    def _met(self, module: torch.nn.Module) -> None:
        if self._capture is None and torch.is_grad_enabled():
            self._capture = Capture(module, self._path, self._scale)

    def _scale(self) -> float:
        return float(self._watcher.scales.current or 1.0)

    def end(self) -> str:
        """Write the file, and return what came of it; the script itself is not disturbed by an error."""
        try:
            if self._capture is not None and self._capture.close():
                return f"kept a step in {self._path.name}: ampcheck --from {self._path.name}"
        except (AmpcheckError, OSError, RuntimeError) as error:
            return f"no step was kept: {error}"
        return "no step was kept: no model was called a second time after a backward"
