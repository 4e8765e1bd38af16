"""The watcher of a loop that has neither modules nor optimizers: tensors that a script changes by hand."""

import weakref
from typing import Any

import torch

from ampcheck.observe.script.comparing import Compared
from ampcheck.observe.script.guard import guarded
from ampcheck.observe.script.loop_watcher import LoopWatcher
from ampcheck.observe.script.optimizers import labels_of
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.roots import trains
from ampcheck.observe.script.scaling.losses import leaves_of
from ampcheck.observe.statistics.memory import version_of
from ampcheck.observe.unusual import unwrapped
from ampcheck.values.loop import SPOILT, Kind

#: What is not seen of a step, behind how many they are: its recording ends with the first one.
LATER_BACKWARDS = "backwards after the first of a step: what they add to bare tensors was not seen"


class HandWatcher(LoopWatcher):
    """Follows bare tensors as well: a step begins with a region of autocast, once the last backward's have changed."""

    #: What the last backward has left gradients in, and how often that had been written.
    reached: tuple[tuple[weakref.ref[torch.Tensor], int], ...] = ()
    _made_anew = False  #: they are others than those of the backward before

    @guarded
    def end(self) -> None:
        """Stop watching; of a script whose optimizer never stepped its forwards are kept, if none had a backward."""
        thread = self.thread
        trained = self.steps or self.backwards or thread.backwards or thread.asked or thread.not_seen(0)
        recording, whole = self.tape.now, not (trained or self.tape.recorded or self.tape.what_if)
        forwards = isinstance(recording, Compared) and not (recording.backwards or recording.left)
        if recording is not None and forwards and self._owners and whole:
            self.tape.now = None
            recording.close()
            self.tape.recorded.append(recording.finish())
        if self.steps and self.hand.has_spoilt():  # and no backward follows that would show it
            self.journal.note(Kind.GROWN, name=SPOILT, targets=labels_of(self.hand.spoilt, self._owners))
        super().end()

    def reaches(self, tensors: Any, _: Any = (), name: str = "") -> None:
        """Take note of the bare tensors that a backward is about to reach."""
        if self._is_bare():
            loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            held = list(leaves_of(loss)) if isinstance(loss, torch.Tensor) and not name else []
            if held and self.steps and self._pending:
                self.not_seen[LATER_BACKWARDS] = self.not_seen.get(LATER_BACKWARDS, 0) + 1
            before = {id(known()) for known, _ in self.reached}
            self.reached = tuple((weakref.ref(leaf), version_of(leaf)) for leaf in held)
            self._made_anew = bool(before) and before.isdisjoint(id(known()) for known, _ in self.reached)

    @guarded
    def goes_on(self) -> None:
        """Follow what is changed beside the steps again, behind a backward whose gradients are returned."""
        if not self.journal.inside:  # an optimizer is followed in no part
            self.averages.resume()

    @guarded
    def trains(self, inputs: Any) -> bool:
        """Tell whether an optimizer has one of these tensors, or where there is none, whether one is a parameter."""
        given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        leaves = [getattr(getattr(one, "node", None), "variable", unwrapped(one)) for one in given]
        if not self._owners:
            return any(isinstance(one, torch.nn.Parameter) for one in leaves)
        return not self._owners.keys().isdisjoint(map(id, leaves))

    def has_reached(self) -> None:
        """Look at what bare tensors have got, before the script uses it."""
        if not self._is_bare():
            self.reached = ()
            return
        leaves = [leaf for known, _ in self.reached if (leaf := known()) is not None]
        if leaves and self.steps and self.tape.now is not None:
            with unseen():
                self.tape.know(leaves)
            self._end_recording(leaves, leaves)

    @guarded
    def evaluates(self) -> None:
        """Follow what runs from now on, if it is no step."""
        if self.steps and self.tape.now is None and self.thread.runs:
            self.tape.workers.evaluation.begin(self)

    @guarded
    def saves_model(self) -> None:
        """Take note of the weights of a model that the script keeps."""
        self.tape.workers.evaluation.saved(self.steps)

    def casts_by_hand(self) -> None:
        """Take note of a region of autocast: a step begins with it, if nothing else tells of steps."""
        passes, evaluation = self.averages.passes, self.tape.workers.evaluation
        if torch.is_grad_enabled():
            evaluation.end()
        else:
            self.evaluates()
        passes.regions += 1
        if passes.regions >= passes.begins:
            self.averages.goes_on(passes.regions)
        if self.reached and self._pending and self._is_bare() and self._have_changed():
            self.stepped()
            if trains():
                self.tape.casts(self.steps, self.turns.parameters)

    def _is_bare(self) -> bool:
        """Tell whether no optimizer has anything, and no module with parameters was called."""
        return not self._owners and not any(label.startswith("model") for label in self.journal.things)

    def _have_changed(self) -> bool:
        """Tell whether the tensors that the last backward has reached are others now, or were written."""
        held = [(known(), version) for known, version in self.reached]
        return self._made_anew or any(leaf is None or version_of(leaf) != version for leaf, version in held)
