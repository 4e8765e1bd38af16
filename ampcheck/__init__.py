"""Finds what mixed precision does to a PyTorch training step: which layer, which operation, which line.

Reading order, which is the way of the data: `values` travel; `targets` finds what to audit; `observe` turns running
code into a trace; `diagnose` judges it; `fix` searches a plan; `saved` and `compare` keep reports; `run` puts these
together; `renderers` write reports; `bench`, `integrations`, `cli` and `pytest_plugin` are what people use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcheck.api import capture as capture
    from ampcheck.api import check as check
    from ampcheck.errors import AmpcheckError as AmpcheckError
    from ampcheck.renderers.frames import frames as frames
    from ampcheck.run.watch_loop import watch as watch
    from ampcheck.values.findings import Finding as Finding
    from ampcheck.values.findings import Severity as Severity
    from ampcheck.values.formats import Format as Format
    from ampcheck.values.plan import Plan as Plan
    from ampcheck.values.report import Report as Report
    from ampcheck.values.stats import TensorStats as TensorStats
    from ampcheck.values.trace import Site as Site
    from ampcheck.values.trace import Trace as Trace

#: The public names and where they live; each is loaded when it is first used, so importing ampcheck is free.
_HOMES = {
    "AmpcheckError": "errors",
    "Finding": "values.findings",
    "Format": "values.formats",
    "Plan": "fix.apply_plan",
    "Report": "renderers.saving",
    "Severity": "values.findings",
    "Site": "values.trace",
    "TensorStats": "values.stats",
    "Trace": "values.trace",
    "capture": "api",
    "check": "api",
    "frames": "renderers.frames",
    "watch": "api",
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
    "capture",
    "check",
    "frames",
    "watch",
]


def load_ipython_extension(shell: Any) -> None:
    """Let a notebook audit its cells: `%load_ext ampcheck`, then `%%ampcheck` above a cell that trains."""
    from ampcheck.integrations.jupyter import load

    load(shell)


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ampcheck")
    if name not in _HOMES:
        raise AttributeError(f"module 'ampcheck' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(f"ampcheck.{_HOMES[name]}"), name)
