"""Which findings count: by code, family or name, by module, and by comments on the lines of the user's code.

Nothing is thrown away: what does not count moves to `Report.suppressed`, with who said so.
"""

import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ampcheck.compare.config import Config
from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.verdict import judged
from ampcheck.errors import ConfigError
from ampcheck.targets.spec import close
from ampcheck.values.findings import Finding, How, Suppressed
from ampcheck.values.report import Report
from ampcheck.values.trace import Site
from ampcheck.values.wording import ROOT

#: What a finding is ignored by: `# ampcheck: ignore[AMP101, near-overflow] the reason`.
_DIRECTIVE = re.compile(
    r"#\s*ampcheck:\s*(?P<verb>[\w-]*)\s*(?:\[(?P<codes>[^\]]*)\])?:?\s*(?P<reason>[^#]*)"
)
EXAMPLE = "# ampcheck: ignore[AMP101] why"

Reader = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment that keeps findings of some lines from counting."""

    first: int  #: of the statement it stands in
    last: int
    line: int  #: its own
    codes: tuple[str, ...]
    reason: str = ""
    mistake: str = ""  #: why it does nothing


def names() -> dict[str, str]:
    """Return the names of findings with their codes."""
    return {rule.__name__.replace("_", "-"): code for code, rule in RULES.items()}


def matches(finding: Finding, entry: str) -> bool:
    """Tell whether a code, a family such as AMP2, or a name stands for a finding."""
    return finding.code.startswith(entry.upper()) or finding.name == entry.lower()


def misnamed(entry: str) -> str:
    """Return what is wrong with a code, a family or a name; '' where it stands for a rule."""
    family = entry.upper().startswith("AMP") and any(code.startswith(entry.upper()) for code in RULES)
    if family or entry.lower() in names():
        return ""
    hint = (
        close(entry.upper(), sorted(RULES))
        if entry.upper().startswith("AMP")
        else close(entry, sorted(names()))
    )
    return f"expected a code, a family or a name of a rule, got {entry!r}{hint or '; `ampcheck explain` lists them'}"


def checked(config: Config) -> Config:
    """Return the configuration, once every code in it is known to stand for a rule."""
    where = str(config.source or "")
    listed = (("select", config.select), ("ignore", config.ignore), *config.per_module_ignores.items())
    for name, codes in listed:
        for entry in codes:
            if misnamed(entry):
                raise ConfigError(f"{name}: {misnamed(entry)}", where=where)
    return config


def select(report: Report, config: Config, read: Reader = lambda _: None) -> Report:
    """Return the report with only those findings left that count; `read` gives the text of a user's file."""
    comments, notes = _comments(report, read)
    kept, dropped = [], []
    for finding in report.findings:
        held = _suppressed(finding, config, comments)
        if held is None:
            kept.append(finding)
        else:
            dropped.append(held)
    shown = replace(report, notes=tuple(dict.fromkeys((*report.notes, *notes))))
    if not dropped:
        return shown
    return judged(replace(shown, findings=tuple(kept), suppressed=(*report.suppressed, *dropped)))


def source(file: str) -> str | None:
    """Return the text of a file of the user's as Python reads it, None where that cannot be done."""
    try:
        with tokenize.open(file) as stream:
            return stream.read()
    except (OSError, SyntaxError, ValueError):
        return None


def _suppressed(
    finding: Finding, config: Config, comments: Mapping[str, tuple[Comment, ...]]
) -> Suppressed | None:
    """Return the finding with what keeps it from counting, None where nothing does."""
    if config.select and not any(matches(finding, entry) for entry in config.select):
        return Suppressed(finding, How.NOT_SELECTED)
    if finding.origin is not None:
        held = _at(finding, finding.origin, config, comments)
        if held is not None:
            return held
    entry = next((entry for entry in config.ignore if matches(finding, entry)), None)
    return None if entry is None else Suppressed(finding, How.IGNORED, entry)


def _at(
    finding: Finding, site: Site, config: Config, comments: Mapping[str, tuple[Comment, ...]]
) -> Suppressed | None:
    """Return the finding with the comment at its line, or the glob for its module, that it is ignored by."""
    for comment in comments.get(site.file, ()):
        if comment.first <= site.line <= comment.last and any(matches(finding, e) for e in comment.codes):
            return Suppressed(finding, How.COMMENT, f"{site.file}:{comment.line}", comment.reason)
    for pattern, codes in config.per_module_ignores.items():
        if inside(site.module, pattern) and any(matches(finding, entry) for entry in codes):
            return Suppressed(finding, How.MODULE, pattern)
    return None


def inside(module: str, pattern: str) -> bool:
    """Tell whether a glob stands for a module or for one that it is part of.

    >>> inside("encoder.layers.0.attn", "encoder.layers.*"), inside("", "(root)"), inside("encoders", "encoder")
    (True, True, False)
    """
    parts = module.split(".")
    whole = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any(fnmatchcase(name or ROOT, pattern) for name in whole)


def _comments(report: Report, read: Reader) -> tuple[dict[str, tuple[Comment, ...]], list[str]]:
    """Return the comments by file of the findings, and what is wrong with some of them."""
    files = dict.fromkeys(finding.origin.file for finding in report.findings if finding.origin)
    texts = ((file, read(file)) for file in files if file)
    found = {file: tuple(comments(text)) for file, text in texts if text is not None}
    notes = [
        f"{file}:{comment.line}: {comment.mistake}"
        for file, held in found.items()
        for comment in held
        if comment.mistake
    ]
    return found, notes


def comments(text: str) -> Iterator[Comment]:
    r"""Yield the comments of a source text that speak to ampcheck; what a string holds is no comment.

    >>> [(c.first, c.last, c.codes, c.reason) for c in comments("y = f(\n  x)  # ampcheck: ignore[AMP101] bounded")]
    [(1, 2, ('AMP101',), 'bounded')]
    """
    first = 0
    waiting: list[tokenize.TokenInfo] = []
    for token in _tokens(text):
        if token.type == tokenize.COMMENT and _DIRECTIVE.search(token.string):
            waiting.append(token)
        elif token.type == tokenize.NEWLINE:
            yield from (_comment(held, first, token.start[0]) for held in waiting)
            first, waiting = 0, []
        elif token.type not in _BETWEEN:
            first = first or token.start[0]
    yield from (_comment(held, 0, 0) for held in waiting)


#: Tokens that stand between statements.
_BETWEEN = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a text, up to where it is no Python."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def _comment(token: tokenize.TokenInfo, first: int, last: int) -> Comment:
    line = token.start[0]
    found = _DIRECTIVE.search(token.string)
    assert found is not None
    codes = tuple(entry for entry in re.split(r"[\s,]+", found["codes"] or "") if entry)
    mistake = _mistake(found["verb"], codes)
    if not mistake and not first <= line <= last:
        mistake = "an ampcheck comment on a line of its own does nothing; put it after the code on its line"
    if mistake:
        return Comment(first, last, line, (), mistake=mistake)
    return Comment(first, last, line, codes, found["reason"].strip())


def _mistake(verb: str, codes: Iterable[str]) -> str:
    if verb != "ignore" or not codes:
        return f"an ampcheck comment was not understood and does nothing; write {EXAMPLE}"
    wrong = next((entry for entry in codes if misnamed(entry)), None)
    return "" if wrong is None else f"an ampcheck comment does nothing: {misnamed(wrong)}"
