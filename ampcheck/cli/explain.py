"""Explain a finding: what it means, why it matters, what to do, when to ignore it."""

import argparse

from ampcheck.errors import AmpcheckError
from ampcheck.rules import RULES
from ampcheck.rules.manual import page, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck explain`."""
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="a code such as AMP101; without it all are listed"
    )
    parser.add_argument("--markdown", action="store_true", help="list all as a Markdown table")


def run(options: argparse.Namespace) -> int:
    """Print the manual of one rule, or the list of all."""
    if options.markdown:
        print(table())
        return 0
    if options.code is None:
        for code in sorted(RULES):
            shown = page(code)
            print(f"{code}  {shown.name}: {shown.summary}")
        return 0
    code = options.code.upper()
    if code not in RULES:
        raise AmpcheckError(
            f"expected one of {', '.join(sorted(RULES))}, got {options.code!r}; `ampcheck explain` lists them"
        )
    print(page(code).text)
    return 0
