"""Steps that have what no step has shown that FP32 ran beside: one more is worth comparing then."""

from collections.abc import Iterator

from ampcheck.observe.script.recording import Recorded

#: Of a parameter's gradient, what is newly zero where a step makes the next one worth comparing.
MORE_ZEROS = 0.1


def strange(done: Recorded, recorded: list[Recorded]) -> bool:
    """Tell whether a step has what no step that FP32 ran beside has shown."""
    full = [one for one in recorded if one.beside is not None]
    known = {module.path for one in full for module in one.low.modules}
    fresh = any(module.path not in known for module in done.low.modules)
    other = all(one.precision != done.precision for one in full)
    calm = all(one.overflowed for one in full)  # the scale has settled since
    return done.overflowed or fresh or other or calm or _fewer_arrive(done, full)


def _fewer_arrive(done: Recorded, full: list[Recorded]) -> bool:
    """Tell whether far more of a parameter's gradient is zero than it was in any of some steps."""
    most: dict[str, float] = {}
    for recorded in full:
        for name, share in _zeros(recorded):
            most[name] = max(most.get(name, 0.0), share)
    return any(share > most[name] + MORE_ZEROS for name, share in _zeros(done) if name in most)


def _zeros(recorded: Recorded) -> Iterator[tuple[str, float]]:
    """Yield by parameter which share of its gradient is zero."""
    for site, stats in recorded.low.sites.items():
        if site.slot.startswith("param_grad[") and stats.numel:
            yield f"{site.module}.{site.slot}", stats.zeros / stats.numel
