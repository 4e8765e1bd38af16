"""The top of the page: the verdict, what to do about it, and what it rests on."""

from collections.abc import Iterator

from ampcheck.diagnose.caveats import caveats
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.page.elements import Html, badge, tag
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health

#: A sign and a word each, so that no meaning hangs on a colour.
_HEALTH = {
    Health.SAFE: ("✓", "Safe"),
    Health.PARTLY_AUDITED: ("?", "Partly audited"),
    Health.RISK: ("!", "Risk"),
    Health.UNSAFE: ("✕", "Unsafe"),
    Health.UNKNOWN: ("?", "Unknown"),
}


def verdict(report: Report) -> Html:
    """Return the answer in one sentence, and what it rests on."""
    health, sentence = report.verdict.word, report.verdict.sentence
    sign, word = _HEALTH[health]
    return tag(
        "section",
        tag("h1", badge(sign, word, health), " ", tag("span", sentence, class_="sentence")),
        [tag("p", tag("strong", label), " ", words, class_="todo") for label, words in answer_lines(report)],
        tag("ul", [tag("li", line) for line in _caveats(report)], class_="caveats"),
        class_="verdict",
        aria_label="Verdict",
    )


def _caveats(report: Report) -> Iterator[str]:
    for _, caveat in caveats(report):
        yield f"{caveat[0].upper()}{caveat[1:].rstrip('.')}."
