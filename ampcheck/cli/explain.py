"""Explain a finding or a subject: the manual of every rule, and the pages of `ampcheck/manual`."""

import argparse
from importlib.resources import files

from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page, table
from ampcheck.errors import AmpcheckError
from ampcheck.targets.spec import close


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ampcheck explain`."""
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="a code, a name or a page: AMP101, forward-overflow, loss-scale; without it all are listed",
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
        print("\nPages:")
        for name, text in pages().items():
            print(f"{name}  {text.splitlines()[0].removeprefix('# ')}")
        return 0
    found = pages().get(options.code.lower().removesuffix(".md"))
    print(page(_code(options.code)).text if found is None else found.rstrip("\n"))
    return 0


def pages() -> dict[str, str]:
    """Return the pages of the manual by name."""
    folder = files("ampcheck").joinpath("manual")
    found = {
        entry.name.removesuffix(".md"): entry for entry in folder.iterdir() if entry.name.endswith(".md")
    }
    return {name: found[name].read_text(encoding="utf-8") for name in sorted(found)}


def _code(word: str) -> str:
    """Return the code that a code or a name stands for."""
    codes = {page(code).name: code for code in RULES} | {code: code for code in RULES}
    known = sorted({*codes, *pages()})
    found = codes.get(word.upper()) or codes.get(word.lower())
    if found is None:
        near = close(word.upper() if word[:1].isupper() else word, known)
        raise AmpcheckError(
            f"expected a rule or a page of the manual, got {word!r}{near}", hint="ampcheck explain"
        )
    return found
