"""Models by name: those of torchvision, timm and transformers."""

from importlib import import_module
from typing import Any

from ampcheck.errors import TargetError
from ampcheck.targets.userfile import explained


def library(name: str, packages: str = "") -> Any:
    """Return a library that models are taken from; an error says what to install where it is not there."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision built for another torch
        top = name.partition(".")[0]
        raise TargetError(
            f"{top} cannot be imported: {explained(error)}", hint=f"pip install {packages or top}"
        ) from error
