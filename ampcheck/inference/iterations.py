"""Programs that call a module again and again, as samplers do: how the error grows from call to call."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

import torch

from ampcheck.observe.step_record import Fetched
from ampcheck.values.trace import Phase, Site, Trace
from ampcheck.values.wording import ELLIPSIS, percent, plural

#: Calls from which on a module counts as iterated; errors that are listed.
_ITERATED, _LISTED = 3, 4
#: Times the error of the first call from which on it is said to grow.
_GROWS = 3.0


def iterated(trace: Trace, reference: Fetched, low: Fetched) -> tuple[str, ...]:
    """Return a sentence for each outermost module that is called again and again: its error from call to call."""
    return tuple(
        _sentence(module, calls, errors)
        for module, calls in _repeated(trace)
        if len(errors := _by_call(module, reference, low)) >= _ITERATED
    )


def _repeated(trace: Trace) -> Iterator[tuple[str, int]]:
    """Yield the modules but the root that are called again and again, unless one around them is."""
    seen: list[str] = []
    for module in trace.modules:
        if module.calls >= _ITERATED and module.path and not any(_inside(module.path, one) for one in seen):
            seen.append(module.path)
            yield module.path, module.calls


def _inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _by_call(module: str, reference: Fetched, low: Fetched) -> list[float]:
    """Return the error of the last result inside a module, for each of its first calls."""
    known = {site.place: samples for site, samples in reference.samples.items()}
    last: Site | None = None
    for site in low.samples:
        if site.op and site.phase is Phase.FORWARD and _inside(site.module, module) and site.place in known:
            last = site
    return [] if last is None else _errors(known, last, low.samples[last])


def _errors(
    known: Mapping[Site, Sequence[torch.Tensor]], site: Site, after: Sequence[torch.Tensor]
) -> list[float]:
    pairs = zip(known[site.place], after, strict=False)
    return [_error(wide, narrow) for wide, narrow in pairs if wide.shape == narrow.shape]


def _error(wide: torch.Tensor, narrow: torch.Tensor) -> float:
    noise, signal = float((narrow - wide).norm()), float(wide.norm())
    return noise / signal if signal else noise


def _sentence(module: str, calls: int, errors: list[float]) -> str:
    shown = [percent(one) if isfinite(one) else "no finite number" for one in errors]
    half = _LISTED // 2
    listed = shown if len(shown) <= _LISTED else [*shown[:half], ELLIPSIS, *shown[-half:]]
    of = f" of its first {len(errors)} calls" if len(errors) < calls else ""
    bad = next((at for at, one in enumerate(errors) if not isfinite(one)), None)
    if bad is not None:
        grows = f"; from call {bad + 1} on it is not finite"
    elif errors[-1] > _GROWS * errors[0]:
        grows = "; the error grows with the state that is carried from call to call"
    else:
        grows = "; the error does not grow"
    return f"{module} is called {plural(calls, 'time')}: off by {', '.join(listed)}{of}{grows}"
