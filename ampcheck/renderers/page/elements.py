"""HTML that is escaped by construction: a string is text, and only what `tag` makes is markup."""

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape
from typing import TypeAlias

from ampcheck.values.wording import clean

#: Elements without an end tag.
_VOID = frozenset("br col hr input link meta".split())


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | Html | Iterable[str | Html] | None"
Value: TypeAlias = "str | float | bool | None"


def tag(name: str, /, *children: Child, **attributes: Value) -> Html:
    """Return an element; what is None, and an attribute that is False, is left out.

    >>> tag("a", "x < y", tag("b", "z"), href="#m1", class_="far", hidden=False)
    '<a href="#m1" class="far">x &lt; y<b>z</b></a>'
    """
    named = "".join(map(_attribute, attributes.items()))
    body = "".join(map(_body, children))
    return Html(f"<{name}{named}>" if name in _VOID else f"<{name}{named}>{body}</{name}>")


def joined(parts: Iterable[str | Html], between: str | Html = "") -> Html:
    """Return parts as one piece of markup."""
    return Html(shown(between).join(map(shown, parts)))


def titled(key: str, title: str, about: str, *parts: Child) -> Html:
    """Return a section of a page: parts under a title, with what is said beside it."""
    head = tag("h2", f"{title} ", tag("small", about) if about else None, id=f"{key}-title")
    return tag("section", head, *parts, id=key, aria_labelledby=f"{key}-title")


def wide(inside: Html, label: str) -> Html:
    """Return a table in a box that scrolls, with the keyboard too."""
    return tag("div", inside, class_="wide", tabindex="0", role="region", aria_label=label)


def badge(sign: str, words: str, kind: str) -> Html:
    """Return a word in a coloured box, a sign before it: no meaning hangs on a colour."""
    return tag("span", tag("span", sign, class_="sign", aria_hidden="true"), words, class_=f"badge {kind}")


def document(title: str, style: Html, body: Html, script: Html | None = None) -> str:
    """Return a page that has one style, one script at the most, and nothing to fetch."""
    scripts = "" if script is None else f"; script-src {_source(script)}; require-trusted-types-for 'script'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
            f"style-src {_source(style)}{scripts}",
        ),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", style),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _source(text: Html) -> str:
    """Return the source expression that allows one text and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def shown(text: str) -> Html:
    """Return text as markup, with nothing in it but visible characters; markup as it is."""
    if isinstance(text, Html):
        return text
    return Html(escape(text if text.isprintable() else clean(text)))


def _body(child: Child) -> str:
    if child is None:
        return ""
    return shown(child) if isinstance(child, str) else "".join(map(shown, child))


def _attribute(item: tuple[str, Value]) -> str:
    name, value = item
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{shown(str(value))}"'
