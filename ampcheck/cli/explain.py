"""Explain a finding: what it means, why it matters, what to do, when to ignore it."""

import argparse
import inspect

from ampcheck.errors import AmpcheckError
from ampcheck.rules import RULES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck explain`."""
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="a code such as AMP101; without it all are listed"
    )


def run(options: argparse.Namespace) -> int:
    """Print the manual of one rule, or the list of all."""
    if options.code is None:
        for code, rule in RULES.items():
            print(f"{code}  {_name(rule)}: {_manual(rule).splitlines()[0]}")
        return 0
    code = options.code.upper()
    if code not in RULES:
        raise AmpcheckError(
            f"expected one of {', '.join(RULES)}, got {options.code!r}; `ampcheck explain` lists them"
        )
    print(f"{code} {_name(RULES[code])}\n\n{_manual(RULES[code])}")
    return 0


def _name(rule: object) -> str:
    return str(getattr(rule, "__name__", "")).replace("_", "-")


def _manual(rule: object) -> str:
    return inspect.getdoc(rule) or ""
