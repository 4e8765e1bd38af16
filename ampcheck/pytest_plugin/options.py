"""The names that pytest knows: `--ampcheck-fail-on` on its command line, `ampcheck_fail_on` among its ini options.

What pytest does not say, `[tool.ampcheck]` of pyproject.toml says under the same name: `fail-on`.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest

#: What `[tool.ampcheck]` knows too: what it is, and whether it is a list.
SHARED = {
    "precision": ("what to audit in: fp16, bf16 or auto, several with commas between them", True),
    "fail-on": ("lowest severity that fails: error, warning, info or never", False),
    "select": ("only these findings count: codes, families or names", True),
    "ignore": ("these findings do not count: codes, families or names", True),
    "scale": ("loss scale, a power of two such as 1024 or 2^10", False),
    "steps": ("training steps to audit", False),
    "budget": ("seconds to search for a remedy", False),
    "baseline": ("compare all audits with the baseline in this file", False),
}
#: Where a file speaks to pytest.
_SECTIONS = ("pytest", "tool:pytest", "tool.pytest", "tool.pytest.ini_options")
#: Only pytest's.
FILES = "collect targets from files of this pattern too, such as ampcheck_*.py"


def add(parser: pytest.Parser) -> None:
    """Add all options to pytest's command line and ini files."""
    group = parser.getgroup("ampcheck", "mixed precision audits")
    group.addoption(
        "--ampcheck",
        action="append",
        default=[],
        metavar="FILE[:NAME]",
        help="audit the targets in a file, or the one of that name, as tests: one of each precision; without a "
        "path to collect from, nothing else is run",
    )
    group.addoption(
        "--ampcheck-update-baseline",
        action="store_true",
        help="accept all audits as they are; reasons are kept",
    )
    group.addoption(
        "--ampcheck-reason",
        default="",
        metavar="TEXT",
        help="why findings that are new in a baseline are accepted",
    )
    group.addoption(
        "--ampcheck-report",
        default=None,
        metavar="DIR",
        help="write the page, the Markdown and the SARIF of every audit into this folder",
    )
    _add(parser, group, "files", FILES, many=True)
    for name, (about, many) in SHARED.items():
        _add(parser, group, name, about, many=many)


def _add(parser: pytest.Parser, group: Any, name: str, about: str, *, many: bool) -> None:
    metavar = name.upper().replace("-", "_")
    group.addoption(f"--ampcheck-{name}", dest=ini(name), action="append", metavar=metavar, help=about)
    kind: Literal["args", "string"] = "args" if many else "string"
    parser.addini(ini(name), about, type=kind, default=None)


def ini(name: str) -> str:
    """Return how pytest's ini files, and its parsed options, write a name."""
    return f"ampcheck_{name.replace('-', '_')}"


def given(config: pytest.Config, name: str) -> list[str]:
    """Return the texts that pytest was given under a name: on its command line, else in its ini file."""
    if name == "ampcheck":
        return list(config.option.ampcheck)
    texts = config.getoption(ini(name))
    if texts is None:
        found = config.getini(ini(name))
        texts = [found] if isinstance(found, str) else found or []
    return [part for text in texts for part in text.split(",") if part] if _many(name) else texts


def used(config: pytest.Config) -> bool:
    """Tell whether pytest was given anything under our names."""
    return config.option.ampcheck_update_baseline or any(
        given(config, name) for name in ("ampcheck", "files", *SHARED)
    )


def _many(name: str) -> bool:
    return name == "files" or SHARED[name][1]


def refuse_unknown_names(config: pytest.Config) -> None:
    """Raise for an ini name that begins as ours do and is none: pytest itself would only warn."""
    names = [text.partition("=")[0].strip() for text in config.getoption("override_ini") or []]
    if config.inipath is not None:
        names += _written(config.inipath.read_text(encoding="utf-8", errors="replace"))
    for name in names:
        if name.startswith("ampcheck_") and not _registered(config, name):
            from ampcheck.targets.spec import close

            known = [ini(ours) for ours in ("files", *SHARED)]
            hint = close(name, known) or f"; ampcheck knows {', '.join(known)}"
            raise pytest.UsageError(f"{config.inipath or 'pytest'}: unknown option {name!r}{hint}")


def _written(text: str) -> Iterator[str]:
    """Yield the names that a file's sections for pytest set."""
    section = ""
    for line in text.splitlines():
        header = re.match(r"\s*\[([^\[\]]+)\]", line)
        section = header[1].strip() if header else section
        found = re.match(r"\s*(\w+)\s*=", line)
        if found and section in _SECTIONS:
            yield found[1]


def _registered(config: pytest.Config, name: str) -> bool:
    try:
        config.getini(name)
    except ValueError:
        return False
    return True
