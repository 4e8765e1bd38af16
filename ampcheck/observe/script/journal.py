"""What the script does, written down as events: folded into rounds, with a label for every object."""

import functools
import weakref
from dataclasses import replace
from typing import Any

import torch

from ampcheck.observe.source import SourceFinder, Spot
from ampcheck.values.loop import Event, Kind, LoopObject, Round

#: Different rounds kept; a loop that never repeats itself says no more with another.
MOST_ROUNDS = 256
#: Runs of equal rounds kept.
MOST_RUNS = 4096
#: Events kept of one round: a round that long is no round, but a script without updates.
MOST_EVENTS = 4096

#: Events that begin a new round when the weights have been updated before.
_BEGINNING = frozenset({Kind.AUTOCAST, Kind.FORWARD, Kind.SCALE, Kind.BACKWARD})


#: What is written down once, and may come from a thread beside the round that is running.
_ONCE = frozenset({Kind.SENT_GRAD})


class Journal:
    """The events of a script, in order."""

    def __init__(self) -> None:
        self._finder = SourceFinder()
        #: Events by what makes them different, so that an event seen before costs one look-up.
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._events: list[Event] = []
        self._now: list[int] = []
        self._rounds: dict[tuple[int, ...], int] = {}
        self._order: list[list[int]] = []
        self._labels: dict[int, tuple[Any, str]] = {}
        self._counts: dict[str, int] = {}
        self.things: dict[str, LoopObject] = {}
        self._updated = self._partial = False
        self._inside: list[str] = []  #: labels of the objects in whose methods the script is

    def note(self, kind: Kind, thing: str = "", **said: Any) -> None:
        """Write an event down, with the line of the script that it comes from."""
        self.note_at(self._finder.spot(2), kind, thing, **said)

    def note_at(self, spot: Spot | None, kind: Kind, thing: str = "", **said: Any) -> None:
        """Write an event down that comes from a line of the script."""
        grad = torch.is_grad_enabled()
        if kind in _BEGINNING and grad:
            self.begins()
        if len(self._now) >= MOST_EVENTS:
            return
        by = self._inside[-1] if self._inside else ""
        autocast = autocast_dtype()
        key = (kind, thing, spot, by, grad, autocast, *said.values())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._events)
            file, line = self._finder.line(spot)
            text = self._finder.text(spot)
            caller, method = self._finder.caller(spot)
            around: dict[str, Any] = {"by": by, "grad": grad, "autocast": autocast, **said}
            around |= {"caller": caller, "method": method}
            self._events.append(Event(kind, thing, file=file, line=line, code=text, **around))
        self._now.append(number)

    def spot(self) -> Spot | None:
        """Return the running line of the script."""
        return self._finder.spot(2)

    def withdraw(self, kind: Kind) -> None:
        """Forget the events of a kind that have happened since the last backward."""
        kinds = [self._events[number].kind for number in self._now]
        since = len(kinds) - kinds[::-1].index(Kind.BACKWARD) if Kind.BACKWARD in kinds else 0
        self._now[since:] = [n for n in self._now[since:] if self._events[n].kind is not kind]

    def place(self) -> tuple[str, int]:
        """Return the line of the script that is running."""
        return self._finder.line(self._finder.spot(3))

    def updated(self) -> None:
        """Say that the weights were updated, or would have been: what follows belongs to another round."""
        self._updated = True

    def begins(self) -> None:
        """Say that something runs that begins a round, if the weights have been updated."""
        if self._updated:
            self.turn()

    def turn(self) -> None:
        """End a round."""
        events, self._now, self._updated = tuple(self._now), [], False
        many = events not in self._rounds and len(self._rounds) >= MOST_ROUNDS
        once = [n for n in events if self._events[n].kind in _ONCE] if self._partial or many else []
        if self._partial:
            self._partial, self._now = False, once
            return
        if not events or (many and not once):
            return
        which = self._rounds.setdefault(events, len(self._rounds))
        if self._order and self._order[-1][0] == which:
            self._order[-1][1] += 1
        elif len(self._order) < MOST_RUNS:
            self._order.append([which, 1])

    def joins(self) -> None:
        """Say that the running round began unheard: it is dropped."""
        self._partial = True

    def enter(self, label: str) -> None:
        """Say that what follows happens in a method of an object."""
        self._inside.append(label)

    def leave(self) -> str:
        """Say that a method has returned, and return of which object; '' if it began before anyone listened."""
        return self._inside.pop() if self._inside else ""

    @property
    def inside(self) -> str:
        """Return the label of the object in whose method the script is, '' for none."""
        return self._inside[-1] if self._inside else ""

    def label(self, made: Any, family: str) -> str:
        """Return the label of an object, a new one when it is first seen."""
        known = self._labels.get(id(made))
        if known is not None and known[0]() is made:
            return known[1]
        number = self._counts[family] = self._counts.get(family, 0) + 1
        label = f"{family} {number}"
        self._labels[id(made)] = (_reference(made), label)
        file, line = self.place()
        self.things[label] = LoopObject(label, type(made).__name__, {}, file, line)
        return label

    def describe(self, label: str, **settings: Any) -> None:
        """Add what is known of an object."""
        known = self.things[label]
        self.things[label] = replace(known, settings={**known.settings, **settings})

    def rounds(self) -> tuple[tuple[Round, ...], tuple[tuple[int, int], ...]]:
        """Return the different rounds and the order they came in."""
        different = tuple(tuple(self._events[number] for number in numbers) for numbers in self._rounds)
        return different, tuple((which, times) for which, times in self._order)


def autocast_dtype() -> str:
    """Return the dtype that autocast would cast to now, '' where it is off."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return dtype_name(torch.get_autocast_dtype(device))
    return ""


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return "float16", "bfloat16", ..."""
    return str(dtype).removeprefix("torch.")


def _reference(made: Any) -> Any:
    try:
        return weakref.ref(made)
    except TypeError:  # an object without a place for weak references is kept
        return lambda: made
