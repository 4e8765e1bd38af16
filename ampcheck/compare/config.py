"""What a project asks for: `[tool.ampcheck]` of the nearest pyproject.toml, under the command line's own names.

A name is written `fail-on` in pyproject.toml, `--fail-on` on the command line and `ampcheck_fail_on` among
pytest's ini options. What is given on a command line takes the place of what the file says.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, Self

from ampcheck.errors import ConfigError
from ampcheck.targets.spec import close
from ampcheck.values.settings import CASTS, MODES, PRECISIONS, Settings, parse_precision, parse_scale

FILE = "pyproject.toml"
SECTION = "[tool.ampcheck]"
#: From which severity on a finding makes the exit status 1.
FAIL_ON = ("error", "warning", "info", "never")


@dataclass(frozen=True, slots=True)
class Config:
    """What to audit with and what to make of the findings; the defaults are those of the command line."""

    precision: str = "fp16"
    scale: int | None = None  #: log2; None: as GradScaler settles
    steps: int = 1
    verify: bool = True
    verify_steps: int = 0
    budget: float = 60.0  #: seconds
    layers_only: bool = False
    sample: int = 0  #: elements of a tensor; 0: all
    mode: str = "auto"
    cast: str = "auto"
    keep: tuple[str, ...] = ()  #: modules left in FP32 from the start
    fail_on: str = "error"
    select: tuple[str, ...] = ()  #: codes, families or names; nothing: all of them
    ignore: tuple[str, ...] = ()
    per_module_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: by glob of a module
    baseline: Path | None = None  #: what to hold a report against
    source: Path | None = None  #: the file that this was read from

    def overridden(self, given: Mapping[str, Any]) -> Self:
        """Return the configuration with what was given in its place; None stands for not given."""
        known = {key(name) for name in NAMES}
        said: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v
            for name, v in given.items()
            if name in known and v is not None
        }
        return replace(self, **said)

    @property
    def settings(self) -> Settings:
        """Return what an audit is to be run with."""
        names = ("precision", "steps", "verify", "verify_steps", "budget", "layers_only", "sample")
        same = {name: getattr(self, name) for name in (*names, "mode", "cast", "keep")}
        try:
            return Settings(log2_scale=self.scale, **same)
        except ValueError as error:
            raise ConfigError(str(error)) from error


#: What can be set, as pyproject.toml writes it; the command line puts -- before it.
NAMES = tuple(item.name.replace("_", "-") for item in fields(Config) if item.name != "source")


def key(name: str) -> str:
    """Return the attribute of `Config` that a name stands for."""
    return name.replace("-", "_")


def find(start: Path) -> Config:
    """Return the configuration for a file or a folder: that of the nearest pyproject.toml that has one."""
    here = start.resolve()
    for folder in (here, *here.parents):
        path = folder / FILE
        section = _section(path) if path.is_file() else None
        if section is not None:
            return from_mapping(section, path)
    return Config()


def from_mapping(section: object, path: Path) -> Config:
    """Return the configuration that a table of a file stands for; paths in it are seen from its folder."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"expected a table {SECTION}, got {section!r}", where=str(path))
    values, listed = {}, f"; it has {', '.join(NAMES)}"
    for name, value in section.items():
        if name not in NAMES:
            raise ConfigError(
                f"{SECTION} has no key {name!r}{close(name, NAMES) or listed}",
                where=str(path),
            )
        values[key(name)] = read_value(name, value, str(path))
    if "baseline" in values:
        values["baseline"] = path.parent / values["baseline"]
    return Config(**values, source=path)


def read_value(name: str, value: object, where: str) -> Any:
    """Return the value of a name once it is known to be of its type; `where` is said if it is not."""
    expected, read = _READERS[name]
    try:
        return read(value)
    except (TypeError, ValueError):
        hint = close(value, expected.split(" or ")) if isinstance(value, str) else ""
        raise ConfigError(f"{name}: expected {expected}, got {value!r}{hint}", where=where) from None


def _section(path: Path) -> object | None:
    """Return the table in a file, None where it has none."""
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"expected a TOML file, got one that cannot be read: {error}", where=str(path)
        ) from error
    return tool.get("ampcheck") if isinstance(tool, dict) else None


def _one_of(choices: tuple[str, ...]) -> tuple[str, Callable[[object], str]]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return " or ".join(choices), read


def _whole(value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError
    return value


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError
    return float(value)


def _codes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_text(item) for item in value)


def _scale(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return parse_scale(str(value))


def _by_glob(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(pattern): _codes(codes) for pattern, codes in value.items()}


_CODES = 'a list of codes, families or names such as ["AMP101", "AMP2", "near-overflow"]'
#: What is expected under each name, in words, and how it is read; a reader raises what `read_value` words.
_READERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "precision": (f"{' or '.join(PRECISIONS)} or fp8:RECIPE", lambda value: parse_precision(_text(value))),
    "scale": ('a power of two such as 1024 or "2^10"', _scale),
    "steps": ("a whole number from 1 on", _whole),
    "verify": ("true or false", _yes),
    "verify-steps": ("a whole number from 0 on", lambda value: _whole(value, 0)),
    "budget": ("a number of seconds", _seconds),
    "layers-only": ("true or false", _yes),
    "sample": ("a whole number from 0 on", lambda value: _whole(value, 0)),
    "mode": _one_of(MODES),
    "cast": _one_of(CASTS),
    "keep": ("a list of module names", _codes),
    "fail-on": _one_of(FAIL_ON),
    "select": (_CODES, _codes),
    "ignore": (_CODES, _codes),
    "per-module-ignores": (
        'a table from globs of modules to codes such as {"encoder.*" = ["AMP101"]}',
        _by_glob,
    ),
    "baseline": ("the path of a file", _text),
}
