"""Explain a finding: what it means, why it matters, what to do, when to ignore it."""

import argparse

from ampcheck.errors import AmpcheckError
from ampcheck.rules import RULES
from ampcheck.rules.manual import page, table
from ampcheck.targets.spec import close


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck explain`."""
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="a code or a name such as AMP101 or forward-overflow; without it all are listed",
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
    print(page(_code(options.code)).text)
    return 0


def _code(word: str) -> str:
    """Return the code that a code or a name stands for."""
    codes = {page(code).name: code for code in RULES} | {code: code for code in RULES}
    found = codes.get(word.upper()) or codes.get(word.lower())
    if found is None:
        near = close(word.upper() if word[:1].isupper() else word, sorted(codes))
        raise AmpcheckError(
            f"expected a code or a name of a rule, got {word!r}{near}", hint="ampcheck explain"
        )
    return found
