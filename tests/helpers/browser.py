"""A real browser for the tests of the HTML report: pages opened from files, everything that goes wrong kept."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass
class Opened:
    """A page and what it did that it should not do: console messages, errors, dialogs, requests."""

    page: object
    trouble: list[str] = field(default_factory=list)


def chromium() -> str:
    """Return where Chromium is, or skip."""
    found = os.environ.get("AMPCHECK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} on PATH, and AMPCHECK_CHROMIUM is not set")
    return found


@contextmanager
def launched() -> Iterator[object]:
    """Start a headless Chromium, or skip where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install -e '.[test]'")
    path = chromium()
    with api.sync_playwright() as playwright:
        # Its sandbox refuses to run as root, as it does in containers.
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def opener(browser: object, folder: object) -> Iterator[Callable[..., Opened]]:
    """Yield a function that opens HTML in a fresh context; at the end all of them are closed."""
    contexts = []

    def open_page(html: str, **settings: object) -> Opened:
        file = folder / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        settings.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**settings)
        contexts.append(context)
        opened = Opened(context.new_page())
        watched(opened)
        opened.page.goto(file.as_uri())
        return opened

    yield open_page
    for context in contexts:
        context.close()


def watched(opened: Opened) -> None:
    """Keep whatever the page complains about, and every request that leaves its file."""

    def dismiss(dialog: object) -> None:
        opened.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def requested(request: object) -> None:
        if not request.url.startswith(("file:", "data:")) or request.resource_type not in (
            "document",
            "other",
        ):
            opened.trouble.append(f"request: {request.url}")

    opened.page.on("console", lambda message: opened.trouble.append(f"console: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.trouble.append(f"error: {error}"))
    opened.page.on("dialog", dismiss)
    opened.page.on("request", requested)
