"""Writes results down under their sites: each measured once, however many places it passes through."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.model.modules import tensors_in
from ampcheck.observe.reference.lineage import Lineage
from ampcheck.observe.seen import CastInputs
from ampcheck.observe.statistics.step_record import StepRecord
from ampcheck.observe.unusual import TRANSFORMED, in_memory, readable
from ampcheck.values.trace import Constant, Phase, Site

#: What stands for an operation where whole modules are measured.
FORWARD_OP, BACKWARD_OP = "forward", "backward"

#: What is said of tensors that point at memory which is not theirs any more.
FREED = "tensors whose memory was freed or shrunk, as offloading does: their values were not read"

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_STRIDED = torch.strided
_transformed = torch._C._functorch.is_functorch_wrapped_tensor
_transforms = torch._C._functorch.peek_interpreter_stack
#: Subclasses of torch's that compute nothing but by their parts: a rank's own part, and what is on its way to it.
_SEEN_WHOLE = frozenset({"DTensor", "AsyncCollectiveTensor"})
_NUMBERS = frozenset({float, int})
_FLOATING = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex32, torch.complex64, torch.complex128),
    )
}


@dataclass(slots=True, eq=False)
class Origin:
    """A line of the forward in one module; the operations there and their backwards belong to it."""

    module: str
    phase: Phase
    file: str
    line: int
    numbers: dict[Any, int] = field(default_factory=dict)  #: (op, slot, phase, dtype) -> site number


class Tally:
    """What is written down of results, and which tensors the last ones were. No tensor is kept alive."""

    def __init__(self, step_record: StepRecord, seen: Any, *, follow: bool) -> None:
        """Write into a step_record; with `follow` also what each result was made of."""
        self._step_record = step_record
        self._seen = seen
        self._cast_inputs = CastInputs()
        self.lineage = Lineage() if follow else None
        self.not_audited: Counter[str] = Counter()
        self._constants: dict[tuple[Origin, str, torch.dtype, float], None] = {}

    def clear(self) -> None:
        """Forget which tensors were seen."""
        self._seen.forget()
        self._cast_inputs.forget()
        if self.lineage is not None:
            self.lineage.clear()

    def took_apart(self, kinds: Any) -> None:
        """Note an operation of which only the parts are seen."""
        kinds = [kind for kind in kinds if kind.__name__ not in _SEEN_WHOLE]
        text = "operations on {}, seen only as the smaller operations it runs"
        self.not_audited.update(text.format(kind.__name__) for kind in kinds)

    def measure(self, origin: Origin, phase: Phase, op: str, slot: str, tensor: torch.Tensor) -> None:
        """Add a tensor's numbers to the site of an operation's result, or of a module's input or output."""
        if type(tensor) not in _PLAIN or tensor.layout is not _STRIDED:
            self._measure_unusual(origin, phase, op, slot, tensor)
            return
        name = _FLOATING.get(tensor.dtype)
        if name is None:
            if tensor.is_quantized:
                self.not_audited[f"quantized tensors ({tensor.dtype})"] += 1
            elif self.lineage is not None and op:
                self.lineage.passed(tensor)  # what an index or a mask was made of makes what it picks
            return
        if not tensor.data_ptr() and tensor.numel():
            self.not_audited["tensors without storage, made by function transforms"] += 1
            return
        key = (op, slot, phase, name)
        number = origin.numbers.get(key)
        if number is None:
            number = self._number(origin, key)
        self._seen.remember(tensor, self._step_record.add(number, tensor))
        if self.lineage is not None and op:
            self.lineage.made(tensor, number)

    def _measure_unusual(
        self, origin: Origin, phase: Phase, op: str, slot: str, tensor: torch.Tensor
    ) -> None:
        """Measure what a tensor of another kind or layout stores, or count it as not audited."""
        found = readable(tensor)
        if isinstance(found, str):
            self.not_audited[found] += 1
        elif not in_memory(found):
            self.not_audited[FREED] += 1
        elif found.dtype in _FLOATING:
            key = (op, slot, phase, _FLOATING[found.dtype])
            self._step_record.add(self.number(origin, key), found)

    def measure_all(self, held: Iterable[tuple[Origin, str, torch.Tensor]]) -> None:
        """Measure parameters and gradients at their slots, outside of the recording."""
        numbers, tensors = [], []
        for origin, slot, tensor in held:
            name = _FLOATING.get(tensor.dtype)
            plain = type(tensor) in _PLAIN and tensor.layout is _STRIDED
            if plain and name is not None and in_memory(tensor):
                numbers.append(self.number(origin, ("", slot, Phase.STATE, name)))
                tensors.append(tensor)
            else:
                self.measure_outside(origin, Phase.STATE, "", slot, tensor)
        self._step_record.add_all(numbers, tensors)

    def number(self, origin: Origin, key: tuple[str, str, Phase, str]) -> int:
        """Return the number of a site: operation, slot, phase and dtype at an origin."""
        number = origin.numbers.get(key)
        return self._number(origin, key) if number is None else number

    def _number(self, origin: Origin, key: tuple[str, str, Phase, str]) -> int:
        op, slot, phase, dtype = key
        site = (origin.module, op, slot, phase, dtype, origin.file, origin.line)
        number = origin.numbers[key] = self._step_record.number(site)
        return number

    def constants(self, origin: Origin, op: str, args: Any, out: torch.Tensor) -> None:
        """Note the numbers that an operation of the forward rounded to half precision."""
        if out.dtype not in HALVES:
            return
        for value in args:
            if type(value) in _NUMBERS and value == value:  # noqa: PLR0124  # no NaN
                self._constants[origin, op, out.dtype, value] = None

    def rounded(self) -> tuple[Constant, ...]:
        """Return the numbers noted, each once a site."""
        return tuple(
            Constant(
                Site(origin.module, op, "output", origin.phase, _FLOATING[dtype], origin.file, origin.line),
                float(value),
            )
            for origin, op, dtype, value in self._constants
        )

    def copied(self, op: str, origin: Origin, phase: Phase, source: Any, out: torch.Tensor) -> None:
        """Note a copy: a cast where the dtype changes, and otherwise nothing new."""
        before, after = source.dtype if isinstance(source, torch.Tensor) else out.dtype, out.dtype
        if before == after:
            self.inherit(source, out)
            if self.lineage is not None:
                self.lineage.passed(out)
            if self._row(out) is None:
                self.measure(origin, phase, op, "output", out)
            return
        self.measure(origin, phase, op, "output", out)
        if before in _FLOATING and after in _FLOATING:
            key = (origin.module, _FLOATING[before], _FLOATING[after], phase, origin.file, origin.line)
            self._step_record.cast(key, out, undoes=self._cast_inputs.undoes(source, out))

    def _row(self, tensor: torch.Tensor) -> int | None:
        """Return the row of a tensor measured in this step and not written to since."""
        row: int | None = self._seen.row(tensor)
        return row if row is not None and row >= self._step_record.first_row else None

    def inherit(self, source: Any, out: Any) -> None:
        """Let a copy or whole view of a measured tensor share its row."""
        if not isinstance(source, torch.Tensor) or not isinstance(out, torch.Tensor):
            return
        row = self._row(source)
        if row is not None and out.numel() == source.numel():
            self._seen.remember(out, row)

    def crossed(self, origin: Origin, slot: str, value: Any) -> None:
        """Note the tensors that enter or leave a module, reading only those not measured yet."""
        for place, tensor in tensors_in(value, slot):
            row = self._row(tensor)
            if row is None:
                self.measure_outside(origin, Phase.FORWARD, "", place, tensor)
                continue
            key = ("", place, Phase.FORWARD, _FLOATING[tensor.dtype])
            self._step_record.alias(row, self.number(origin, key))

    def measure_outside(self, origin: Origin, phase: Phase, op: str, slot: str, tensor: torch.Tensor) -> None:
        """Measure a tensor that the user's code holds: its own overrides of operations are not run."""
        if _transforms() is not None:  # what is computed for a measurement would be transformed too
            self.not_audited[TRANSFORMED] += 1
            return
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            plain = type(tensor) in _PLAIN and tensor.layout is _STRIDED and not _transformed(tensor)
            if plain and not in_memory(tensor):
                self.not_audited[FREED] += 1
                return
            measure = self.measure if plain else self._measure_unusual
            measure(origin, phase, op, slot, tensor)

    def known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has been measured already, as it is now."""
        return self._row(tensor) is not None

    def made(self, found: Iterable[tuple[torch.Tensor, int]]) -> dict[int, Site]:
        """Return by storage what has made it."""
        names = self._step_record.names()
        return {
            tensor.untyped_storage()._cdata: names[number]
            for tensor, number in found
            if type(tensor) in _PLAIN and tensor.layout is _STRIDED
            if in_memory(tensor)
        }

    def sources(self) -> dict[Site, list[Site]]:
        """Return what each operation's results were made of, in order of execution."""
        names = self._step_record.names()
        known = {} if self.lineage is None else self.lineage.sources
        return {names[number]: [names[source] for source in sources] for number, sources in known.items()}
