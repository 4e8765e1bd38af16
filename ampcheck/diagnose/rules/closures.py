"""Optimizers that compute the loss themselves, several times a step, through a closure."""

from ampcheck.values.loop import UNCACHED, Event, Kind, Loop


def around_closures(loop: Loop) -> Event | None:
    """Return the region of autocast in which an optimizer's step computes the loss more than once.

    Autocast keeps casts of FP32 weights alone.
    """
    regions: list[Event] = []
    stepping, backwards = "", 0
    for _, event in loop.sequence(1):
        if event.kind is Kind.AUTOCAST and event.autocast:
            regions.append(event)
        elif event.kind is Kind.AUTOCAST_END and regions:
            regions.pop()
        elif event.kind is Kind.STEP and regions and regions[0].name.endswith(UNCACHED):
            return None
        elif event.kind is Kind.STEP:
            stepping, backwards = event.thing if regions and not regions[0].by else "", 0
        elif event.kind is Kind.BACKWARD and stepping and event.by == stepping:
            backwards += 1
            if backwards > 1 and regions and _steps_fp32(loop, stepping):
                return None if any(region.by for region in regions) else regions[0]
    return None


def _steps_fp32(loop: Loop, label: str) -> bool:
    """Tell whether an optimizer updates weights in FP32."""
    thing = loop.thing(label)
    return thing is None or "float32" in str(thing.settings.get("dtypes", "float32"))
