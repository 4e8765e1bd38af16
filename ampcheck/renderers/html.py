"""The report as one HTML page: readable without its script, and with nothing to fetch."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from ampcheck.diagnose.tables import layer_rows, scale_curve
from ampcheck.renderers.page import answer, blocks, layers, numbers, scales
from ampcheck.renderers.page.elements import Html, document, joined, tag
from ampcheck.renderers.page.tree import module_tree
from ampcheck.renderers.sections import ANSWER, REST, sections
from ampcheck.renderers.view import Section
from ampcheck.renderers.words import facts
from ampcheck.values.report import Report
from ampcheck.values.wording import clean

#: In the order in which they are put together.
_STYLES = ("look.css", "parts.css", "tables.css", "paper.css")
_SCRIPTS = tuple(
    f"{name}.js" for name in "bounds words state landscape pointing scale tree detail start".split()
)


def render(report: Report) -> str:
    """Return the report as a page."""
    nodes = module_tree(report, layer_rows(report))
    rows = {} if report.dry else {node.path: node.index for node in nodes}
    span = scales.scale_range(report)
    first, last = list(sections(report, ANSWER)), list(sections(report, REST))
    body = joined(
        [
            tag("a", "Skip to the report", href="#report", class_="skip"),
            _header(report, first, last),
            tag(
                "main",
                answer.verdict(report),
                [blocks.laid_out(report, section, rows) for section in first],
                None if report.dry else scales.picture(report, scale_curve(report, span)),
                None if report.dry else layers.layers(report, nodes),
                [blocks.laid_out(report, section, rows) for section in last],
                id="report",
                tabindex="-1",
            ),
            tag("aside", id="detail", hidden=True, tabindex="-1", aria_labelledby="detail-title"),
            # What scripts do is done to numbers.
            tag("script", numbers.data(report, nodes, span), type="application/json", id="data")
            if not report.dry
            else "",
            tag("script", _script()) if not report.dry else "",
        ]
    )
    title = f"{report.verdict.word.upper()} {clean(report.target)} · ampcheck"
    return document(title, _style(), tag("body", body), _script())


@cache
def _style() -> Html:
    return Html("\n".join(_assets(_STYLES)))


@cache
def _script() -> Html:
    return Html('"use strict";\n(() => {\n' + "\n".join(_assets(_SCRIPTS)) + "\n})();")


def _assets(names: tuple[str, ...]) -> Iterator[str]:
    folder = files("ampcheck.renderers.page").joinpath("assets")
    return (folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _header(report: Report, first: list[Section], last: list[Section]) -> Html:
    shown = [tag("li", fact) for fact in facts(report)]
    keys = ("findings", "plan", "loop", "layers", "dtypes", "missed")
    tables = [] if report.dry else [Section("layers", "Layers")]
    links = [(f"#{one.key}", one.title) for one in (*first, *tables, *last) if one.key in keys]
    brand = tag("span", "ampcheck", class_="brand")
    target = tag("span", clean(report.target), class_="target")
    about = tag("div", brand, target, tag("ul", shown, class_="facts"))
    nav = tag("nav", [tag("a", name, href=link) for link, name in links], aria_label="Sections")
    theme = tag("button", "Theme: system", type="button", id="theme", class_="scripted")
    return tag("header", about, nav, theme)
