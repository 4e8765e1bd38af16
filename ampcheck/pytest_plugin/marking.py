"""What `@pytest.mark.ampcheck(...)`, pytest's own options and `[tool.ampcheck]` ask for together."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.compare.config import Config, find, key, read_value
from ampcheck.compare.select import checked
from ampcheck.errors import ConfigError
from ampcheck.pytest_plugin.options import SHARED, given, ini
from ampcheck.targets.spec import close

TAKES = ("precision", "fail_on", "ignore")
_OPTIONS = "pytest's options"
_MARKER = "@pytest.mark.ampcheck"
_NUMBERS = {"steps": int, "budget": float}


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to audit in one test."""

    config: Config
    precisions: tuple[str, ...]
    strict: bool = False  #: a marker says what to fail on, so the audit itself has to fail


def wanted(config: pytest.Config, near: Path, markers: Iterable[pytest.Mark]) -> Wanted:
    """Return what is asked for near a file; markers come closest first, as pytest gives them."""
    options = {name: texts for name in SHARED if (texts := given(config, name))}
    precisions = tuple(read_value("precision", text, _OPTIONS) for text in options.pop("precision", ()))
    values = {key(name): _value(name, texts) for name, texts in options.items()}
    if "baseline" in values:
        typed = config.getoption(ini("baseline")) is not None
        values["baseline"] = (config.invocation_params.dir if typed else config.rootpath) / values["baseline"]
    found = find(near).overridden(values)
    strict = False
    for marker in reversed(list(markers)):
        said = _arguments(marker)
        precisions = said.get("precision", precisions)
        strict = strict or "fail_on" in said
        ignore = (*found.ignore, *said.get("ignore", ()))
        found = replace(found, fail_on=said.get("fail_on", found.fail_on), ignore=ignore)
    precisions = precisions or (found.precision,)
    return Wanted(checked(found), precisions, strict)


def precisions(marker: pytest.Mark) -> tuple[str, ...]:
    """Return the precisions that a marker lists."""
    return tuple(_arguments(marker).get("precision", ()))


def _arguments(marker: pytest.Mark) -> Mapping[str, Any]:
    """Return what a marker says, lists as tuples, once it is known to make sense."""
    if marker.args:
        raise ConfigError(f"expected {', '.join(TAKES)} by name, got {marker.args!r}", where=_MARKER)
    for name in marker.kwargs:
        if name not in TAKES:
            hint = close(name, TAKES) or f"; it takes {', '.join(TAKES)}"
            raise ConfigError(f"it has no argument {name!r}{hint}", where=_MARKER)
    said = dict(marker.kwargs)
    if "precision" in said:
        listed = said["precision"]
        said["precision"] = (listed,) if isinstance(listed, str) else tuple(listed)
        for precision in said["precision"]:
            read_value("precision", precision, _MARKER)
    if "fail_on" in said:
        read_value("fail-on", said["fail_on"], _MARKER)
    if "ignore" in said:
        said["ignore"] = read_value("ignore", list(said["ignore"]), _MARKER)
    return said


def _value(name: str, texts: list[str]) -> Any:
    """Return what texts from a command line or an ini file stand for, read as pyproject.toml's values are."""
    value: Any = texts if SHARED[name][1] else texts[-1]
    if name in _NUMBERS:
        with suppress(ValueError):  # read_value says what was expected
            value = _NUMBERS[name](value)
    return read_value(name, value, _OPTIONS)
