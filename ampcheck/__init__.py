"""Finds what mixed precision does to a PyTorch training step: which layer, which operation, which line.

Reading order: `formats`, `stats`, `trace` and `report` are the values; `observe` turns running code into a
trace; `rules` judge it; `renderers` write it down; `audit` and `cli` put these together.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcheck.api import check as check
    from ampcheck.errors import AmpcheckError as AmpcheckError
    from ampcheck.findings import Finding as Finding
    from ampcheck.findings import Severity as Severity
    from ampcheck.formats import Format as Format
    from ampcheck.plan import Plan as Plan
    from ampcheck.renderers.frames import frames as frames
    from ampcheck.report import Report as Report
    from ampcheck.stats import TensorStats as TensorStats
    from ampcheck.trace import Site as Site
    from ampcheck.trace import Trace as Trace
    from ampcheck.watching import watch as watch

#: The public names and where they live; each is loaded when it is first used, so importing ampcheck is free.
_HOMES = {
    "AmpcheckError": "errors",
    "Finding": "findings",
    "Format": "formats",
    "Plan": "plan",
    "Report": "report",
    "Severity": "findings",
    "Site": "trace",
    "TensorStats": "stats",
    "Trace": "trace",
    "check": "api",
    "frames": "renderers.frames",
    "watch": "watching",
}

__all__ = [
    "AmpcheckError",
    "Finding",
    "Format",
    "Plan",
    "Report",
    "Severity",
    "Site",
    "TensorStats",
    "Trace",
    "check",
    "frames",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ampcheck")
    if name not in _HOMES:
        raise AttributeError(f"module 'ampcheck' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"ampcheck.{_HOMES[name]}"), name)
