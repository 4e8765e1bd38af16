"""Programs that call a module again and again, as samplers do: how the error grows from call to call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.values.agreement import Agreement
from ampcheck.values.formats import HALVES
from ampcheck.values.trace import Phase, Site, Trace
from ampcheck.values.wording import ELLIPSIS, percent, place, plural

#: Calls from which on a module counts as iterated; errors that are listed.
_ITERATED, _LISTED = 3, 4
#: Times the error of the first call from which on it is said to grow.
_GROWS = 3.0
#: What is carried into a call of a chain, by the call's number.
STATE = "state at "
#: An error that counts as total.
_MOST = 1.0


#: Share of a call's error that has to be there where it is said to enter.
_THERE = 0.5


@dataclass(frozen=True, slots=True)
class Iterated:
    """A module that is called again and again: the error of each result inside it, call by call."""

    module: str
    sites: dict[Site, list[float]]  #: in order of execution

    @property
    def errors(self) -> list[float]:
        """Return the error of the last result, for each call."""
        return next(reversed(self.sites.values()), [])

    def enters(self, call: int) -> Site | None:
        """Return the first result that is as far off as half of what the call ends with; None where nothing is off."""
        end = self.errors[call]
        if not end:
            return None
        return next(
            (site for site, errors in self.sites.items() if not errors[call] < _THERE * min(end, _MOST)), None
        )


def iterated(trace: Trace, reference: Fetched, low: Fetched) -> tuple[str, ...]:
    """Return a sentence for each outermost module that is called again and again: its error from call to call."""
    return tuple(
        _sentence(found, calls)
        for module, calls in _repeated(trace)
        if len((found := _by_call(module, reference, low)).errors) >= _ITERATED
    )


def from_call_to_call(outputs: Iterable[Agreement]) -> Iterator[str]:
    """Yield how far off what is carried from call to call is, at the first calls and at the last ones."""
    found = [(name, one) for one in outputs if (name := one.name.removeprefix("output.")).startswith(STATE)]
    half = _LISTED // 2
    listed = found if len(found) <= _LISTED else [*found[:half], *found[-half:]]
    shown = [f"{_off(one.error)} at {name.removeprefix(STATE)}" for name, one in listed]
    if shown:
        yield f"what is carried from call to call is off by {', '.join(shown)}"


def _off(error: float) -> str:
    return percent(error) if isfinite(error) else "no finite number"


def _repeated(trace: Trace) -> Iterator[tuple[str, int]]:
    """Yield the modules that are called again and again, unless one around them is."""
    seen: list[str] = []
    for module in trace.modules:
        if module.calls >= _ITERATED and not any(_inside(module.path, one) for one in seen):
            seen.append(module.path)
            yield module.path, module.calls


def _inside(path: str, module: str) -> bool:
    return path == module or not module or path.startswith(f"{module}.")


def _by_call(module: str, reference: Fetched, low: Fetched) -> Iterated:
    """Return what is known of a module's first calls: the error of each result inside it, in order of execution."""
    known = {site.place: samples for site, samples in reference.samples.items()}
    sites = {
        site: _errors(known, site, samples)
        for site, samples in low.samples.items()
        if site.op and site.phase is Phase.FORWARD and _inside(site.module, module) and site.place in known
    }
    last = next(reversed(sites.values()), [])
    return Iterated(module, {site: errors for site, errors in sites.items() if len(errors) == len(last)})


def _errors(
    known: Mapping[Site, Sequence[torch.Tensor]], site: Site, after: Sequence[torch.Tensor]
) -> list[float]:
    pairs = zip(known[site.place], after, strict=False)
    return [_error(wide, narrow) for wide, narrow in pairs if wide.shape == narrow.shape]


def _error(wide: torch.Tensor, narrow: torch.Tensor) -> float:
    noise, signal = float((narrow - wide).norm()), float(wide.norm())
    return noise / signal if signal else noise


def _sentence(found: Iterated, calls: int) -> str:
    errors = found.errors
    shown = [_off(one) for one in errors]
    half = _LISTED // 2
    listed = shown if len(shown) <= _LISTED else [*shown[:half], ELLIPSIS, *shown[-half:]]
    of = f" of its first {len(errors)} calls" if len(errors) < calls else ""
    begun = f"{found.module or 'the model'} is called {plural(calls, 'time')}: off by {', '.join(listed)}{of}"
    return f"{begun}{_growth(found)}{_entrance(found)}"


def _growth(found: Iterated) -> str:
    errors = found.errors
    bad = next((at for at, one in enumerate(errors) if not isfinite(one)), None)
    if bad is not None:
        return f"; from call {bad + 1} on it is not finite"
    if errors[-1] <= _GROWS * errors[0]:
        return "; the error does not grow"
    state = next(reversed(found.sites)).dtype
    held = f", held in {state}" if state in HALVES else ""
    return f"; the error grows with the state that is carried from call to call{held}"


def _entrance(found: Iterated) -> str:
    """Return by which operation the error enters, in the first call and in the last one."""
    sites = list(found.sites)
    first, last = found.enters(0), found.enters(-1)
    if first is None or last is None:
        return ""
    if last == first:
        return f"; it enters at {place(first)}"
    late = "with its input" if last == sites[0] else f"at {place(last)}"
    return f"; in call 1 it enters at {place(first)}, in call {len(found.errors)} {late}"
