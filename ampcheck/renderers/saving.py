"""A report as a file: the ending of its name says the format."""

from html import escape
from pathlib import Path

from ampcheck.errors import ReportError
from ampcheck.renderers import SUFFIXES, markdown, render
from ampcheck.saved.report_json import write
from ampcheck.values.report import PRESENTATION, Report


def format_of(path: str | Path) -> str | None:
    """Return the format that the ending of a file's name stands for."""
    return SUFFIXES.get(Path(path).suffix.lower())


def save(report: Report, path: str | Path) -> None:
    """Write a report to a file in the format of its ending: .json, .html, .md, .txt, .csv, .sarif or .xml."""
    form = format_of(path)
    if form is None:
        raise ReportError(f"expected a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}; rename it")
    save_as(report, path, form)


def save_as(report: Report, path: str | Path, form: str) -> None:
    """Write a report to a file in one of the formats; Markdown has its pictures beside it."""
    if form == "markdown":
        _save_page(report, Path(path))
    else:
        write(path, ended(render(report, form)))


def ended(text: str) -> str:
    """Return a text that ends in a new line."""
    return text if text.endswith("\n") else text + "\n"


def _save_page(report: Report, path: Path) -> None:
    """Write Markdown with its pictures beside it; into what is no file, without any."""
    pictures = {} if path.exists() and not path.is_file() else markdown.pictures(report)
    names = {name: f"{path.stem}.{name}.svg" for name in pictures}
    for name, picture in pictures.items():
        write(path.with_name(names[name]), picture)
    write(path, markdown.render(report, names))


def _text(report: Report) -> str:
    """Return what the terminal shows."""
    return render(report, "terminal").rstrip("\n")


def _notebook(report: Report) -> str:
    """Return the page in a frame of its own."""
    style = "width:100%;height:80vh;border:0"
    page = escape(render(report, "html"))
    return f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="ampcheck" style="{style}"></iframe>'


PRESENTATION.text, PRESENTATION.notebook, PRESENTATION.save = _text, _notebook, save
