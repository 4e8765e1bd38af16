"""The top of the page: what was audited, the verdict, and what to do about it."""

from collections.abc import Iterator, Sequence

from ampcheck.diagnose.caveats import caveats
from ampcheck.renderers.advice import how_tried, scaler_call, unchanged
from ampcheck.renderers.next_step import answer_lines
from ampcheck.renderers.page.elements import Html, joined, shown, tag
from ampcheck.values.plan import Claim, Plan, Tried
from ampcheck.values.report import Report
from ampcheck.values.verdict import Health
from ampcheck.values.wording import ELLIPSIS, clean, count

#: A sign and a word each, so that no meaning hangs on a colour.
_HEALTH = {
    Health.SAFE: ("✓", "Safe"),
    Health.PARTLY_AUDITED: ("?", "Partly audited"),
    Health.RISK: ("!", "Risk"),
    Health.UNSAFE: ("✕", "Unsafe"),
    Health.UNKNOWN: ("?", "Unknown"),
}
_TRIED = {Tried.CONFIRMED: "✓", Tried.REFUTED: "✕", Tried.NOT_TRIED: "?"}
_STATES = {"healthy": ("confirmed", "✓"), "harmed": ("refuted", "✕"), "inconclusive": ("not-tried", "?")}
#: Names of a list, and characters of a claim, shown at once.
_NAMES = 6
_CLAIM = 120


def verdict(report: Report) -> Html:
    """Return the answer in one sentence, and what it rests on."""
    health, sentence = report.verdict.word, report.verdict.sentence
    sign, word = _HEALTH[health]
    badge = tag("span", tag("span", sign, class_="sign", aria_hidden="true"), word, class_=f"badge {health}")
    return tag(
        "section",
        tag("h1", badge, " ", tag("span", sentence, class_="sentence")),
        [tag("p", tag("strong", label), " ", words, class_="todo") for label, words in answer_lines(report)],
        tag("ul", [tag("li", line) for line in _caveats(report)], class_="caveats"),
        class_="verdict",
        aria_label="Verdict",
    )


def _caveats(report: Report) -> Iterator[str]:
    for _, caveat in caveats(report):
        yield f"{caveat[0].upper()}{caveat[1:].rstrip('.')}."


def plan(report: Report) -> Html:
    """Return what to train with, the evidence for it, and the change to the code."""
    made = report.plan
    steps = list(_steps(made)) if made else []
    todo = tag("dl", [part for name, what in steps for part in (tag("dt", name), tag("dd", what))])
    if made is None:
        why = (
            "without a re-run there is no plan to recommend"
            if report.loop is None
            else "a script's steps are seen as they run; audited by itself, its model gets a plan"
        )
        todo = tag("p", f"Nothing was tried: {why}.", class_="muted")
    claims = [_claim(claim) for claim in report.claims]
    outcomes = list(_precisions(report))
    advice = [tag("li", clean(sentence)) for sentence in report.advice]
    expect = tag("details", tag("summary", "What to expect"), tag("ul", advice, class_="advice"))
    return tag(
        "section",
        tag("h2", "What to do ", tag("small", how_tried(report)) if report.claims else None, id="plan-title"),
        tag(
            "div",
            tag("div", todo, tag("ul", outcomes, class_="outcomes") if outcomes else None),
            tag("div", tag("ul", claims, class_="claims"), expect if advice else None)
            if claims or advice
            else None,
            _patch(report.patch),
            class_="columns",
        ),
        id="plan",
        aria_labelledby="plan-title",
    )


def _precisions(report: Report) -> Iterator[Html]:
    """Yield how the step came out in each precision, as it was audited, without any change."""
    for name, state, words in unchanged(report):
        style, sign = _STATES[state]
        yield tag("li", tag("b", name), " ", tag("span", f"{sign} {state}", class_=f"tried {style}"), words)


def _steps(made: Plan) -> Iterator[tuple[str, Html]]:
    yield "Precision", tag("code", made.precision)
    if made.fp32_modules:
        yield "Keep in FP32", _listed(made.fp32_modules)
    if made.fp32_lines:
        yield "Lines in FP32", _listed(made.fp32_lines)
    if made.recipe:
        yield "Recipe", tag("code", made.recipe)
    if made.in_bf16:
        yield "Stays in bf16", tag("code", made.in_bf16)
    if made.scaler is not None:
        yield "Loss scaler", tag("code", scaler_call(made.scaler))


def _listed(names: Sequence[str]) -> Html:
    """Return names in a row, those beyond the first few behind a line to open."""
    shown, rest = names[:_NAMES], names[_NAMES:]
    first = joined([tag("code", name) for name in shown], ", ")
    if not rest:
        return first
    more = joined([tag("code", name) for name in rest], ", ")
    return joined([first, tag("details", tag("summary", f"and {count(len(rest))} more"), more)])


def _claim(claim: Claim) -> Html:
    state = str(claim.tried).replace(" ", "-")
    change = (
        f"{clean(claim.before) or '?'} → {clean(claim.after) or '?'}" if claim.before or claim.after else ""
    )
    return tag(
        "li",
        tag("span", _TRIED[claim.tried], class_=f"mark {state}", aria_hidden="true"),
        tag(
            "div",
            _words(clean(claim.claim)),
            " ",
            tag("span", str(claim.tried), class_=f"tried {state}"),
            tag("div", change, class_="muted") if change else None,
        ),
    )


def _words(text: str) -> Html:
    """Return a claim, the rest of a very long one behind a line to open."""
    if len(text) <= _CLAIM:
        return tag("strong", text)
    cut = text.rfind(" ", 0, _CLAIM)
    end = cut if cut > 0 else _CLAIM
    return tag("details", tag("summary", tag("strong", text[:end], ELLIPSIS)), text[end:], class_="long")


def _patch(patch: str) -> Html | None:
    if not patch:
        return None
    lines = [_patch_line(line, diff=patch.startswith("---")) for line in patch.splitlines()]
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("span", "The change to your code" if patch.startswith("---") else "Lines to paste"),
            tag("button", "Copy", type="button", class_="scripted", id="copy"),
        ),
        tag("pre", tag("code", joined(lines, Html("\n")), id="patch"), tabindex="0", aria_label="The change"),
        class_="patch",
    )


def _patch_line(line: str, *, diff: bool) -> Html:
    """Return a line as it is, its spaces too: it is there to be copied."""
    words = Html("\t".join(shown(part) for part in _spaced(line).split("\t")))
    kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1]) if diff else None
    return tag("span", words, class_=kind) if kind else words


def _spaced(line: str) -> str:
    return line if all(char == "\t" or char.isprintable() for char in line) else clean(line)
