"""An FP32 run beside a low-precision one: every result a second time, from FP32 inputs, op for op.

A script's step cannot be run again: what its code does between the forward and the update is its own. So each
operation runs as the script wants it, and then once more on the references of its inputs: FP32 tensors that hold what
would stand there if nothing before had been rounded. Twins belong to storages, so views need no care. Where an
operation draws random numbers the reference takes the draw; where it picks (an argmax, a comparison) the script's pick
decides for both. Nothing here is visible to the script: no autograd, no random state, no written argument.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.dtypes import WIDE
from ampcheck.observe.execution import Args, Kwargs
from ampcheck.observe.reference.copies import Copies
from ampcheck.observe.reference.effects import Effects, effects, is_limited, run_in_fp32, unlimited, written
from ampcheck.observe.reference.picks import CONVERTS, PICKS, Picks
from ampcheck.observe.reference.sharing import Message, has_arrived, in_backward, share, sum_of, written_by
from ampcheck.observe.reference.storage import Reference, holding, is_sparse, memory_of
from ampcheck.observe.statistics.memory import holds_low, readable, tensors_of

if TYPE_CHECKING:
    from ampcheck.observe.reference.given import Given

#: What is to be done with an operation's results.
Follow = Callable[[Any], None]
#: Not for the script's own modes, of either kind.
_NO_MODES = torch._C._DisableTorchDispatch
_NO_FUNCTIONS = torch._C.DisableTorchFunction
_NO_SUBCLASSES = torch._C.DisableTorchFunctionSubclass
#: Of the results of an operation that has no FP32.
TAKEN = "that the FP32 reference takes from the script"
#: Twins held before the ones whose tensors are gone are looked for.
_SWEEP = 16


class Shadow:
    """The references of a step's tensors; they live as long as what they stand beside."""

    def __init__(self, execute: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Begin without references; `execute` runs an operation as the script wants it."""
        self._execute = execute
        self._references: dict[int, Reference] = {}
        self._sweep_at = _SWEEP
        self._received: set[int] = set()  #: storages that hold sums over ranks
        self._under_way: dict[int, Message] = {}  #: by storage
        self.scale = 1.0  #: of the loss in the script's backward
        self.copies = Copies()
        self.failed: dict[str, int] = {}  #: operations whose FP32 run raised, and how often
        self.given: Given | None = None  #: takes note of half-precision numbers from before the step
        self.picks: Picks | None = None  #: takes note of what is picked
        self.decides = False  #: what it picks it picks by its own numbers
        self.parted = False  #: somewhere it could not go on with its own numbers, and took the script's
        self.gave_way: Callable[[Exception], None] = _raise  #: told of an error of our own

    def clear(self) -> None:
        """Forget all references."""
        self._references.clear()
        self._received.clear()
        self._under_way.clear()
        self._sweep_at = _SWEEP

    def __bool__(self) -> bool:
        """Tell whether anything differs from FP32 yet."""
        return bool(self._references)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return what stands here in FP32; None where that is the tensor itself."""
        found = self._beside(tensor)
        return None if found is None else found.of(tensor)

    def _beside(self, tensor: torch.Tensor) -> Reference | None:
        """Return the reference of a tensor's whole storage."""
        if not (self._references or self._under_way) or not readable(tensor):
            return None
        storage = tensor.untyped_storage()
        message = self._under_way.get(storage._cdata) if self._under_way else None
        if message is not None and (has_arrived(message.out) or not in_backward()):
            self._arrived(storage._cdata)
        reference = self._references.get(storage._cdata)
        return reference if reference is not None and reference.covers(tensor) else None

    def keep(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        """Say what stands here in FP32."""
        if readable(tensor):
            self._keep(tensor, wide)

    def forget(self, tensor: torch.Tensor) -> None:
        """Let what stands here be what FP32 has, too."""
        self._references.pop(tensor.untyped_storage()._cdata, None)

    def replace(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        """Say what stands here in FP32, and leave the rest of its memory as it is."""
        if readable(tensor):
            reference = self.of(tensor)
            (self._adopt(tensor) if reference is None else reference).copy_(wide)

    def set(self, tensor: torch.Tensor, value: float) -> None:
        """Say what stands here in FP32: one number everywhere."""
        reference = self.of(tensor)
        (self._adopt(tensor) if reference is None else reference).fill_(value)

    def run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run an operation, and where anything in it differs from FP32, its reference."""
        rule = effects(func)
        follow: Follow | None = None
        try:
            # of which a view has memory of its own
            if not rule.view or any(map(is_sparse, tensors_of(args[:1]))):
                with _NO_FUNCTIONS():
                    follow = self._follow(rule, func, args, kwargs)
        except Exception as error:  # noqa: BLE001  # of our own
            self.gave_way(error)
        if rule.once:  # it may run Python of the script's, for which nothing changes
            out = self._execute(func, args, kwargs)
        else:
            with _NO_SUBCLASSES():  # which hear nothing below autograd, and whose results are plain tensors
                out = self._execute(func, args, kwargs)
        if follow is not None:
            try:
                with _NO_FUNCTIONS():
                    follow(out)
            except Exception as error:  # noqa: BLE001  # of our own
                self.gave_way(error)
        return out

    def _follow(self, rule: Effects, func: Any, args: Args, kwargs: Kwargs) -> Follow | None:
        """Return what is to be done after an operation; what it reads is put aside now."""
        if self._under_way:
            arrives = self._use(rule, args, kwargs)
            if arrives is not None:
                return arrives
        if rule.message:
            return self._sends(rule, args)
        if not (self._differs(args, kwargs) or is_limited(rule.name, args)):
            return self._take_low
        if rule.name == "copy_" and self._arrives_again(args):
            return None
        targets = [*tensors_of(written(rule, args, kwargs))]
        self.copies.note(targets, args[1] if rule.name == "copy_" else None, self.of)
        if rule.once:
            self.failed[rule.name] = self.failed.get(rule.name, 0) + 1
            factor = self._factor
            return lambda out: self._take((out, targets), factor)
        moves = self.given is not None and self.given.read(rule, (*args, *kwargs.values()), targets, self.of)
        self._begin_beside(targets)
        wide_args = unlimited(rule.name, tuple(self._wide(value) for value in args))
        wide_kwargs = {name: self._wide(value) for name, value in kwargs.items()}

        return lambda out: self._mirror(rule, func, out, (args, wide_args, wide_kwargs, moves), targets)

    def _begin_beside(self, targets: list[torch.Tensor]) -> None:
        for tensor in targets:
            if readable(tensor) and self.of(tensor) is None:
                self._adopt(tensor)

    def _take_low(self, out: Any) -> None:
        if holds_low((out,)):
            self._take(out)

    def _sends(self, rule: Effects, args: Args) -> Follow:
        """Let an operation between ranks run once, and wait for nothing: of a sum, FP32's share is known here.

        The numbers may arrive long after the operation. Whoever reads them then has waited; so do we, no earlier.
        """
        sent = sum_of(rule.name, args)
        wide = None if sent is None else self.of(sent.part)
        before = None if sent is None or wide is None else sent.part.clone()
        factor = 1.0 / self.scale if in_backward() else 1.0

        def follow(out: Any) -> None:
            for tensor in tensors_of(written_by(rule.name, args)):
                if readable(tensor):
                    self._references.pop(tensor.untyped_storage()._cdata, None)
            if "recv" in rule.name or "alltoall" in rule.name or "all_to_all" in rule.name:
                self.failed[rule.name] = self.failed.get(rule.name, 0) + 1
            if sent is None or wide is None or before is None:
                return
            result = out if sent.result is None else sent.result
            if readable(result):
                storage = result.untyped_storage()
                whole = sent._replace(result=result.detach())
                # What a functional one returns is there once it was waited for, others tell by themselves.
                work = None if sent.result is None else out
                message = Message(StorageWeakRef(storage), whole, before, wide.clone(), factor, work)
                self._under_way[storage._cdata] = message

        return follow

    def _use(self, rule: Effects, args: Args, kwargs: Kwargs) -> Follow | None:
        """Take what messages have brought where an operation uses it: by then the script has waited."""
        if rule.message and not rule.name.startswith("wait_tensor"):
            return None
        if rule.name == "copy_" and self._is_under_way(args[0]) and self.of(args[1]) is None:
            place = args[0].untyped_storage()._cdata  # as Gloo does it, while it is waited for
            return lambda _: self._arrived(place)
        if rule.name.startswith("wait_tensor"):
            places = [tensor.untyped_storage()._cdata for tensor in tensors_of(args) if readable(tensor)]
            return lambda _: self._all_arrived(places)
        for tensor in tensors_of((*args, *kwargs.values())):
            if self._is_under_way(tensor):
                self._arrived(tensor.untyped_storage()._cdata)
        return None

    def _is_under_way(self, tensor: torch.Tensor) -> bool:
        return readable(tensor) and tensor.untyped_storage()._cdata in self._under_way

    def _all_arrived(self, storages: list[int]) -> None:
        for storage in storages:
            self._arrived(storage)

    def _arrived(self, storage: int) -> None:
        """Let FP32 have its share of what a message has brought."""
        message = self._under_way.pop(storage, None)
        if message is not None and not message.storage.expired():
            sent = message.sent
            assert sent.result is not None
            self._keep(sent.result, share(sent, message.before, message.wide, message.factor))
            self._received.add(storage)

    def _arrives_again(self, args: Args) -> bool:
        """Tell whether a message that has been waited for is copied to its place once more, as Gloo does."""
        place, source = args[:2]
        if not self._received or place.untyped_storage()._cdata not in self._received:
            return False
        if self.of(source) is not None or place.dtype != source.dtype:
            return False
        return bool(torch.isclose(place, source, rtol=0.0, atol=0.0, equal_nan=True).all())

    def _mirror(self, rule: Effects, func: Any, out: Any, values: Any, targets: list[torch.Tensor]) -> None:
        """Give the results of an operation their references."""
        args, wide_args, wide_kwargs, moves = values
        if moves and self.given is not None:
            self.given.moved(out)
        if self.given is not None and (others := self.given.integers(out)) is not None:
            self._keep(out, others)
            return
        try:
            with _NO_MODES():
                wide = run_in_fp32(rule, func, (args, wide_args, wide_kwargs), out, self._factor)
        except Exception:  # noqa: BLE001  # an operation that insists on half precision; its result is taken as it is
            self.failed[rule.name] = self.failed.get(rule.name, 0) + 1
            wide, self.parted = None, True
        if wide is None and not (rule.silent and rule.name not in self.failed):
            self._take((out, targets), self._factor)
            return
        if self.decides and rule.name == CONVERTS and out.dtype in {torch.int64, torch.int32} and out.numel():
            wide = wide.clamp(out.min(), out.max())  # an index that leaves its table would end the program
        if self.picks is not None and rule.name in PICKS:
            self.picks.note(rule.name, wide_args, wide_kwargs, out, wide, low=args[0])
        held = {tensor.untyped_storage()._cdata for tensor in targets if readable(tensor)}
        inputs = {one.untyped_storage()._cdata for one in tensors_of(wide_args) if readable(one)}
        pairs = zip(tensors_of((out,)), tensors_of((wide,)), strict=False)
        for tensor, reference in ((memory_of(low), memory_of(high)) for low, high in pairs):
            numbers = tensor.is_floating_point() or tensor.is_complex()
            kept = numbers or self.decides or in_backward()  # where masks decide on gradients
            if kept and readable(tensor) and tensor.untyped_storage()._cdata not in held:
                own = reference.untyped_storage()._cdata not in inputs
                self._keep(tensor, reference if own else reference.clone())

    def _differs(self, args: Any, kwargs: Any) -> bool:
        """Tell whether a reference or a half-precision tensor or dtype is among the inputs."""
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, torch.Tensor):
                if value.dtype in WIDE or self._beside(memory_of(value)) is not None:
                    return True
            elif isinstance(value, (list, tuple)):
                if self._differs(value, None):
                    return True
            elif isinstance(value, torch.dtype) and value in WIDE:
                return True
        return False

    def _wide(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and is_sparse(value):
            return holding(value, self._wide(memory_of(value)))
        if isinstance(value, torch.Tensor):
            reference = self.of(value)
            if reference is not None:
                return reference
            return value.to(WIDE[value.dtype]) if value.dtype in WIDE and readable(value) else value
        if isinstance(value, (list, tuple)):
            return [self._wide(item) for item in value]
        return WIDE.get(value, value) if isinstance(value, torch.dtype) else value

    @property
    def _factor(self) -> float:
        """Return what gradients are multiplied by in FP32; a forward that runs again in a backward has none."""
        return 1.0 / self.scale if in_backward() and not torch.is_grad_enabled() else 1.0

    def _take(self, out: Any, factor: float = 1.0) -> None:
        """Let FP32 go on from what the script has."""
        for tensor in map(memory_of, tensors_of((out,))):
            reference = self.of(tensor)
            scaled = factor != 1.0 and tensor.is_floating_point()
            if reference is not None:
                reference.copy_(tensor)
            elif (tensor.dtype in WIDE or scaled) and readable(tensor):
                reference = self._adopt(tensor)
            if scaled and reference is not None:
                reference.mul_(factor)

    def _adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give a storage a reference that holds the same numbers; return the tensor's part of it."""
        storage = tensor.untyped_storage()
        size, dtype = storage.nbytes() // tensor.element_size(), WIDE.get(tensor.dtype, tensor.dtype)
        flat = torch.empty(size, dtype=dtype, device=tensor.device)
        self._hold(Reference(storage, flat, range(0)))
        reference = self.of(tensor)
        return tensor if reference is None else reference

    def _keep(self, tensor: torch.Tensor, wide: torch.Tensor) -> None:
        """Hold the FP32 result of an operation beside the script's."""
        storage = tensor.untyped_storage()
        if wide.shape != tensor.shape:
            self.parted = True
            self._adopt(tensor)
            return
        size = storage.nbytes() // tensor.element_size()
        dense = wide.untyped_storage()
        same = wide.stride() == tensor.stride() and not wide.storage_offset() and not tensor.storage_offset()
        same = same and not any(one.is_conj() or one.is_neg() for one in (tensor, wide))
        if same and dense.nbytes() == size * wide.element_size():
            self._hold(Reference(storage, wide.as_strided((size,), (1,))))
        else:
            self.replace(tensor, wide)

    def _hold(self, reference: Reference) -> None:
        if len(self._references) >= self._sweep_at:
            held = self._references.items()
            self._references = {key: one for key, one in held if not one.storage.expired()}
            self._sweep_at = len(self._references) * 9 // 8 + _SWEEP
        self._references[reference.storage.cdata] = reference


def _raise(error: Exception) -> None:
    raise error
