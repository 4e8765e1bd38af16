"""What a script computes in half precision without gradients, between its steps: scores, distances, metrics.

No recorded step holds that. So the first evaluations run in FP32, too, as long as it is cheap, and FP32 decides by its
own numbers there. A metric that comes out otherwise is no harm by itself: rounding changes a few answers. It is where
it follows from numbers that are nothing like FP32's, or has overflown.
"""

import weakref
from contextlib import suppress
from math import inf, isfinite
from pathlib import Path
from time import thread_time
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.reference.checks import READ
from ampcheck.observe.reference.effects import Effects
from ampcheck.observe.reference.picks import COMPARES, SEARCHES
from ampcheck.observe.reference.shadow import Follow, Shadow
from ampcheck.observe.script.decisions import Decisions, Misled
from ampcheck.observe.script.preparation import Listener
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.results import Results
from ampcheck.observe.script.state.rounded_weights import RoundedWeights
from ampcheck.observe.source import frames, frames_match, is_user_file, running_line
from ampcheck.observe.statistics.memory import readable, tensors_of
from ampcheck.values.outcome import HARM_ERROR

#: Evaluations that are followed; the seconds FP32 may take in all of them, and operations that are looked at.
_OFTEN, _SECONDS, _OPERATIONS = 2, 2.0, 20_000
#: The same where the script decides by a number in half precision.
_MORE_OFTEN = 256
_LONG = "too many to follow, so whether FP32's are others was not judged"
_USE = "what the script does with it was not seen"
#: Operations that decide: by which numbers are larger, or where they lie.
_DECIDES = frozenset({"argmin", "argmax", "topk", "sort", "argsort"}) | COMPARES | SEARCHES
#: Operations that add to a number.
_SUMS = frozenset("add add_ sub sub_ index_add_ scatter_add_".split())
#: What runs a module's forward.
_IN_MODULE = {"nn/modules/module.py": frozenset({"_call_impl"})}
#: Error of numbers, as a part of FP32's, from which on they are nothing like them.
_NOTHING_LIKE = 0.5
#: Numbers from which on that is no chance of a single one.
_SEVERAL = 8


class _Judged(Results):
    """The references of an evaluation, and what it decides by that is wrong."""

    def __init__(self) -> None:
        super().__init__(_SECONDS, _OPERATIONS)
        self.decides, self.decisions, self.weights = True, Decisions(), RoundedWeights()
        #: By storage of numbers that are nothing like FP32's, the line at which that began.
        self._turned: dict[int, tuple[str, int]] = {}
        #: By storage of what follows from a decision by such numbers, the operation that decides, and that line.
        self._metrics: dict[int, tuple[str, str, int]] = {}
        #: By storage, where half precision began outside of modules.
        self._began: dict[int, tuple[str, int]] = {}
        #: Single numbers in half precision, by identity, and where each was made or written last.
        self._numbers: dict[int, tuple[weakref.ref[torch.Tensor], tuple[str, int]]] = {}
        #: By storage of a sum in half precision, the line that adds.
        self._lines: dict[int, tuple[str, int]] = {}
        #: By storage of what follows from infinite numbers in float16 that nobody saw made, the line that gives these.
        self._lost: dict[int, tuple[str, int]] = {}
        self._looked: set[int] = set()  #: storages that were looked at for such numbers
        self.adds_up: set[tuple[str, int]] = set()  #: lines that add to what they have made themselves
        self.unlike: set[tuple[str, int]] = (
            set()
        )  #: lines from which on a number that is read is nothing like FP32's
        self.asks = False  #: this evaluation decides by numbers, or reads them
        #: The same, and by how much a metric is off, once the script has read one; no operation where it has overflown.
        self.found: tuple[str, str, int, float] | None = None

    def run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run an operation, and its reference; compare a number that the script reads."""
        self.asks |= func is READ
        if func is READ and self.open:
            with suppress(Exception), unseen():  # of our own: then nothing is known of it
                self.decisions.reads(args[0], self, self._began_at)
                self._read(args[0])
        return super().run(func, args, kwargs)

    def _read(self, number: torch.Tensor) -> None:
        decided, wide = self._metrics.get(_key(number)), self.of(number)
        if wide is None:
            return
        low, high = float(number), float(wide)
        off = abs(low - high) / max(abs(high), 1e-12) if isfinite(low) else 1.0
        if number.dtype not in HALVES and (made := self._began.get(_key(number))) is not None:
            self.decisions.scores(low, high, made)
        lost, began = self._lost.get(_key(number)), self._turned.get(_key(number))
        if lost is not None and (not isfinite(low) or (isfinite(high) and off > _NOTHING_LIKE)):
            self.found = self.found or ("", *lost, off if isfinite(low) else inf)
        elif decided is not None and isfinite(high) and high and off > HARM_ERROR:
            self.found = self.found or (*decided, off)
        elif began is not None and isfinite(high) and off > _NOTHING_LIKE:
            self.unlike.add(began)

    def clear(self) -> None:
        """Forget all references, once it is known what the script keeps."""
        with suppress(Exception), unseen():
            for known, place in self._numbers.values():
                if (number := known()) is not None:
                    self.decisions.keeps(number, self, place)
        self._numbers.clear()
        self._lines.clear()
        self.asks = False
        super().clear()
        self._turned.clear()
        self._began.clear()
        self._metrics.clear()
        self._lost.clear()
        self._looked.clear()
        self.weights.knows(())

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        with suppress(Exception), unseen():
            if rule.name in COMPARES:
                self.decisions.compares(rule.name, args, self, self._began_at)
            elif rule.name == "_to_copy":
                self.decisions.reads(args[0], self, self._began_at)
        self.asks |= rule.name in _DECIDES
        adds = self._adds(rule, args)
        given = [_key(one) for one in tensors_of((*args, *kwargs.values())) if readable(one)]
        turned = next((self._turned[key] for key in given if key in self._turned), None)
        first = next((self._began[key] for key in given if key in self._began), None)
        decided = next((self._metrics[key] for key in given if key in self._metrics), None)
        if turned is not None and rule.name in _DECIDES:
            decided = decided or (rule.name, *turned)
        self._looks_at_given(args)
        lost = next((self._lost[key] for key in given if key in self._lost), None)
        follow = super()._follow(rule, func, args, kwargs)

        def and_compare(out: Any) -> None:
            if follow is not None:
                follow(out)
            since = thread_time()
            with self.lock, unseen():
                self.weights.look(args)
                if adds is not None:
                    self._lines |= {_key(one): adds for one in tensors_of((out,)) if readable(one)}
                for tensor in filter(readable, tensors_of((out,))):
                    self._lost.pop(_key(tensor), None)
                    if lost is not None:
                        self._lost[_key(tensor)] = lost
                    self._note(tensor, turned, decided)
                    self._begins(tensor, first)
            self._spent += thread_time() - since

        return and_compare

    def _looks_at_given(self, args: Args) -> None:
        """Take note of infinite numbers in float16 that were made before anything was followed; masks hold -inf."""
        since = thread_time()
        with suppress(Exception), unseen():
            halves = [one for one in tensors_of(args) if one.dtype is torch.float16 and one.dim()]
            for one in (one for one in halves if readable(one) and _key(one) not in self._looked):
                self._looked.add(_key(one))
                made = _key(one) in self._began or self.of(one) is not None
                if not made and bool(one.isposinf().any()):
                    self._lost[_key(one)] = _line_outside_of_modules()
        self._spent += thread_time() - since

    def _adds(self, rule: Effects, args: Args) -> tuple[str, int] | None:
        """Return the line that adds to a sum in half precision, and take note of one that goes on with its own."""
        if rule.name not in _SUMS or frames_match(_IN_MODULE):
            return None
        held = [one for one in tensors_of(args) if readable(one) and one.dtype in HALVES]
        line = running_line() if held else None
        if line is not None and line in [self._lines.get(_key(one)) for one in held]:
            self.adds_up.add(line)
        return line

    def _begins(self, tensor: torch.Tensor, first: tuple[str, int] | None) -> None:
        """Take note of where the half precision of a result has begun."""
        self._began.pop(_key(tensor), None)
        if first is not None:
            self._began[_key(tensor)] = first
        elif tensor.dtype in HALVES and not frames_match(_IN_MODULE):
            self._began[_key(tensor)] = running_line()

    def _began_at(self, tensor: torch.Tensor) -> tuple[str, int]:
        return self._began.get(_key(tensor)) or running_line()

    def _note(
        self, tensor: torch.Tensor, began: tuple[str, int] | None, decided: tuple[str, str, int] | None
    ) -> None:
        """Take note of what a result is: others may have been in its memory before."""
        key = _key(tensor)
        if tensor.dtype in HALVES and not tensor.dim():
            self._numbers[id(tensor)] = weakref.ref(tensor), running_line()
        self._metrics.pop(key, None)
        self._turned.pop(key, None)
        if decided is not None:
            self._metrics[key] = decided
        elif self._is_wrong(tensor, began) and (place := began or running_line())[1]:
            self._turned[key] = place
            if not bool(tensor.isfinite().all()):
                self._lost.setdefault(key, place)

    def _is_wrong(self, tensor: torch.Tensor, began: tuple[str, int] | None) -> bool:
        """Tell whether numbers are nothing like FP32's; what is infinite in FP32 as well is left out.

        So are finite numbers that are few and follow from none that are so.
        """
        # what an operation writes in place is counted as written once that is done
        held = Shadow._beside(self, tensor) if tensor.is_floating_point() else None
        if held is None:
            return False
        wide = held.of(tensor)
        known = wide.isfinite()
        if tensor.numel() < _SEVERAL and began is None:
            return bool((known & ~tensor.isfinite()).any())
        off = (tensor.to(wide.dtype) - wide).where(known, 0.0).nan_to_num(nan=torch.inf).norm()
        return bool(off > _NOTHING_LIKE * wide.where(known, 0.0).norm())


def _line_outside_of_modules() -> tuple[str, int]:
    """Return the running line, or that which calls the outermost module."""
    inside, last = False, running_line()
    for frame in frames():
        code = frame.f_code
        if code.co_name in _IN_MODULE["nn/modules/module.py"] and code.co_filename.endswith(
            "nn/modules/module.py"
        ):
            inside = True
        elif inside and is_user_file(code.co_filename):
            inside, last = False, (code.co_filename, frame.f_lineno)
    return last


def _key(tensor: torch.Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


class _Listener(Listener):
    """Follows an evaluation."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if not types and self.follows and (parts := self.in_parts(func, args, kwargs or {})):
            return parts[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


class Evaluation:
    """Follows the first evaluations of a script."""

    def __init__(self) -> None:
        self._results = _Judged()
        self.mode: _Listener | None = None
        #: Evaluations so far, the last one by the steps that were done before it.
        self._begun: dict[int, int] = {}
        self._times = self._left_out = 0
        self._at = -1  #: the steps that were done before the last evaluation that was followed
        self._saved: set[int] = set()  #: the steps that were done before the script kept a model

    @property
    def missed(self) -> list[str]:
        """Return where it is not known whether FP32 would decide as half precision does, or it would not."""
        results, (whole, cut) = self._results, (not self._left_out, self._results.given_up)
        sums = sorted(results.adds_up) if cut else []
        return [
            *results.decisions.missed(whole=whole and not cut),
            *results.weights.missed(),
            *(
                f"a number that an evaluation reads is nothing like FP32's from {Path(file).name}:{line} on: {_USE}"
                for file, line in sorted(results.unlike)
            ),
            *(
                f"an evaluation adds up numbers in half precision at {Path(file).name}:{line}: {_LONG}"
                for file, line in sums
            ),
        ]

    @property
    def found(self) -> tuple[str, str, int, float] | None:
        """What decides by wrong numbers, the line that made these, and by how much a metric is off."""
        return self._results.found

    @property
    def misled(self) -> list[Misled]:
        """The scores that have not shown better models than the one that the script keeps, or are far off."""
        chooses = len(self._saved) < max(self._begun.values(), default=0)
        return [*self._results.decisions.misled(chooses=chooses)]

    def saved(self, steps: int) -> None:
        """Take note of a model that the script keeps after so many steps."""
        self._saved.add(steps)
        if steps == self._at:
            self._results.decisions.saved()

    def begin(self, watcher: Any) -> None:
        """Follow what runs from now on without gradients."""
        often = _MORE_OFTEN if self._results.decisions else _OFTEN
        if self.mode is not None:
            return
        count = self._begun.get(watcher.steps) or 1 + max(self._begun.values(), default=0)
        self._begun = {watcher.steps: count}
        power = count & (count - 1) == 0
        if (self._times >= often and not power) or not self._results.open:
            self._left_out += 1
        else:
            self._times, self._at = self._times + 1, watcher.steps
            self._results.weights.knows(watcher.updates.in_fp32())
            self.mode = _Listener(self._results, watcher)
            self.mode.__enter__()

    def end(self) -> None:
        """Follow nothing any more, until the next evaluation."""
        mode, self.mode = self.mode, None
        if mode is not None:
            mode.__exit__()
            self._times -= not self._results.asks  # a step's own forward without gradients, as of a teacher
            self._results.clear()

    def close(self) -> None:
        """Follow nothing any more."""
        self.end()
        self._results.open = False
