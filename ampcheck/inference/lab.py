"""Running a model forward, again and again from the same state, and comparing what it gives with FP32's."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ampcheck.errors import StepError
from ampcheck.inference.casting import (
    Way,
    as_asked,
    cast_inputs,
    each_input,
    inputs_of,
    named_state,
    restored,
)
from ampcheck.inference.outputs import Outputs, compare, held, widths_of_heads
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.model.cast_weights import state
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.model.structure import named_modules
from ampcheck.observe.step import Step, Widened, casting_rules
from ampcheck.targets.scope import parameters_of
from ampcheck.values.agreement import worst
from ampcheck.values.modules import within
from ampcheck.values.outcome import Outcome


def call_kept(model: Any, batch: Any) -> Any:
    """Call a model on the arguments of a call that a script made."""
    return model(*batch["args"], **batch["kwargs"])


@dataclass(frozen=True)
class Subject:
    """What is run: a model on batches of inputs."""

    model: Any
    batches: Sequence[Any]
    predict: Callable[[Any, Any], Any]

    @property
    def device(self) -> torch.device:
        """Return where the model is."""
        return Step(self.model, None, lambda *_: None).device

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the inputs by position, as the model's forward calls them."""
        parameters = (parameters_of(getattr(self.model, "forward", self.model)) or {}).values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(one.name for one in parameters if one.kind in kinds)

    def inputs(self, way: Way) -> Iterator[Any]:
        """Yield the batches, cast where the way asks for it."""
        for batch in self.batches:
            if way.dtype is None or not way.weights:
                yield batch
            else:
                halves = getattr(self.predict, "low", False)
                yield cast_inputs(batch, way.dtype, way.keep_inputs, self.names, halves=halves)

    @property
    def carries(self) -> bool:
        """Tell whether what is carried from call to call can stay in FP32."""
        return getattr(self.predict, "chain", None) is not None

    def run(self, batch: Any, way: Way) -> Any:
        """Return what the model gives; a chain of calls has to know the way."""
        run = getattr(self.predict, "run", None)
        return self.predict(self.model, batch) if run is None else run(self.model, batch, way)

    @contextmanager
    def ready(self, way: Way) -> Iterator[None]:
        """Have everything set for forwards in this way; whoever calls this puts the state back."""
        device = self.device
        autocast = way.dtype is not None and not way.weights
        with (
            as_asked(self.model, way),
            casting_rules(device, way.dtype),
            torch.no_grad(),
            torch.autocast(device.type, dtype=way.dtype if autocast else None, enabled=autocast),
        ):
            yield


class ForwardLab:
    """Runs a model's forwards from the same state, and compares their results with the FP32 run's."""

    def __init__(self, subject: Subject) -> None:
        """Run the model in FP32; weights that are stored in half precision count as exact."""
        self.subject = subject
        self._before = Snapshot(subject.model, list(subject.batches))
        self._heads = widths_of_heads(named_modules(subject.model))
        self.trials = 0
        self.by_batch: list[float] = []  #: the worst error of each batch in the latest trial
        with restored(self._before):
            self._reference = self._exact(Way())
        if not any(self._reference):
            raise StepError(
                "expected a tensor among the model's outputs, got none; write predict(model, batch)"
            )

    @property
    def judgeable(self) -> bool:
        """Tell whether FP32 gives any finite number."""
        return any(bool(t.isfinite().any()) for row in self._reference for t in row.values())

    @property
    def library(self) -> str:
        """Return the package that the model's class, or one it is made from, comes from."""
        kinds = [kind.__module__.partition(".")[0] for kind in type(self.subject.model).__mro__]
        return next((name for name in kinds if name in {"transformers", "diffusers"}), "")

    def trial(self, way: Way) -> Outcome:
        """Run in a way and return how the results agree with FP32's."""
        self.trials += 1
        with restored(self._before):
            try:
                return self._compared(self._run(way))
            except Exception as error:  # noqa: BLE001  # the user's code may raise anything
                return Outcome(0, raised=f"{type(error).__name__}: {error}")

    def rounded(
        self,
        dtype: torch.dtype,
        chosen: Callable[[str, torch.Tensor, bool], bool],
        inputs: Sequence[str] = (),
    ) -> Outcome:
        """Run in FP32 with chosen stored numbers, and these inputs, rounded to a format and nothing else.

        `chosen` is asked with each parameter and buffer: its name, itself, and whether it is a buffer.
        """
        with restored(self._before):
            Widened(self.subject.model, list(self.subject.batches))
            with torch.no_grad():
                for name, tensor, buffer in named_state(self.subject.model):
                    if chosen(name, tensor, buffer):
                        tensor.data.copy_(tensor.data.to(dtype))
            try:
                return self._compared(self._run(Way(), dtype if inputs else None, inputs))
            except Exception as error:  # noqa: BLE001
                return Outcome(0, raised=f"{type(error).__name__}: {error}")

    def kept_bytes(self, modules: Sequence[str]) -> int:
        """Return what these modules' stored numbers take in FP32 beyond half precision."""
        held = state(self.subject.model)
        return sum(2 * t.numel() for path, _, t, _ in held if any(within(path, module) for module in modules))

    def _exact(self, way: Way) -> list[Outputs]:
        widened = Widened(self.subject.model, list(self.subject.batches))
        try:
            return self._run(way)
        except Exception:
            if not widened:
                raise
            self._before.restore()  # the model insists on its half-precision weights
            return self._run(way)

    def _run(
        self, way: Way, rounding: torch.dtype | None = None, inputs: Sequence[str] = ()
    ) -> list[Outputs]:
        subject = self.subject
        with ExitStack() as stack:
            stack.enter_context(subject.ready(way))
            if way.dtype is not None and subject.device.type == "cpu":
                stack.enter_context(WideCompute())
            found = []
            for batch in subject.inputs(way):
                given = batch if rounding is None else self._rounded(batch, rounding, inputs)
                found.append(held(subject.run(given, way)))
            return found

    def _rounded(self, batch: Any, dtype: torch.dtype, inputs: Sequence[str]) -> Any:
        def rounded(leaf: Any) -> Any:
            floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return leaf.to(dtype).to(leaf.dtype) if floating else leaf

        others = [name for name in inputs_of(batch, self.subject.names) if name not in inputs]
        return each_input(batch, rounded, others, self.subject.names)

    def _compared(self, rows: list[Outputs]) -> Outcome:
        pairs = zip(self._reference, rows, strict=True)
        found = [compare(before, after, self._heads) for before, after in pairs]
        self.by_batch = [max((one.error for one in row), default=0.0) for row in found]
        return Outcome(0, outputs=worst(found))
