"""What a step would need on CUDA, without one: its operations on tensors that have no storage.

The step runs under CUDA's casting rules on fake tensors (see observe.emulation; tests hold its operations and
casts equal to CUDA's own). What only a GPU knows is left out: workspaces of cuBLAS and cuDNN, cuDNN's reserve
space, fragmentation. Recurrent layers are seen unrolled, attention as a fused kernel. Where a model looks at
its numbers, which fake tensors do not have, the step runs on real ones.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.bench.ledger import Operation
from ampcheck.bench.result import Split
from ampcheck.bench.running.arms import Arm, buffers, optimizer_state, rebound
from ampcheck.bench.running.precisions import Precision
from ampcheck.bench.running.watching import Watch, plainly
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.model.structure import modules, named_parameters
from ampcheck.observe.step import StepRaised, casting_rules
from ampcheck.targets.nested import mapped, tensors
from ampcheck.targets.spec import Target

_LINE = 2  #: points that make one


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step's memory and work."""

    split: Split
    work: tuple[Operation, ...]  #: of forward, backward and update
    note: str = ""
    recurrent: bool = False  #: there are recurrent layers, which are unrolled here

    @property
    def flops(self) -> int:
        """Return the floating-point operations of the step."""
        return sum(op.flops for op in self.work)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Return what the forward computes."""
        return tuple(op for op in self.work if op.phase == "forward")


def predict(
    make: Callable[[], Target], chosen: Precision, *, train: bool = True, batch_size: int | None = None
) -> Prediction:
    """Return what the second step of a target needs in a precision; the first one makes the optimizer's state."""
    try:
        target = chosen.held(make())
        with _quiet(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return _watched(_fake(target, mode, batch_size), chosen, train=train, real=False)
    except Exception as error:  # the user's code meets tensors without numbers
        if batch_size is not None:
            raise
        reason = f"{type(error.__cause__ or error).__name__}"
    with _quiet():
        done = _watched(chosen.held(make()), chosen, train=train, real=True)
    return replace(done, note=f"predicted from real tensors: the model cannot run without numbers ({reason})")


def measured_on_cpu(make: Callable[[], Target]) -> Split:
    """Return the memory of an FP32 step on real CPU tensors, as its operations really took it."""
    with _quiet():
        return _watched(make(), Precision("fp32"), train=True, real=True).split


@contextlib.contextmanager
def _rules(device: torch.device, chosen: Precision, model: Any) -> Iterator[None]:
    # Without oneDNN recurrent layers have the same form in FP32 and in low precision.
    with (
        casting_rules(device, chosen.dtype),
        chosen.places(model),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        yield


def _watched(target: Target, chosen: Precision, *, train: bool, real: bool) -> Prediction:
    # A scaler asks for numbers; what it adds to memory is one of them. The target's weights are cast already.
    arm = Arm(target, replace(chosen, plan=replace(chosen.plan, scaler=None), weights=None), _rules)
    _as_on_cuda(arm.optimizer)
    watch = Watch(target.model, execute if real else plainly)
    with arm.running(), watch:
        watch.known(arm.parameters, "parameters")
        watch.known(buffers(target.model), "buffers")
        watch.known(tensors(target.batch(0)), "batch")
        if not train:
            watch.begin()
            arm.infer()
            return Prediction(watch.ledger.split(), watch.operations, recurrent=watch.recurrent)
        for step in range(2):
            if step:
                watch.known(optimizer_state(arm.optimizer), "optimizer state")
                watch.begin()
            _train(arm, watch)
    return Prediction(watch.ledger.split(), watch.operations, recurrent=watch.recurrent)


def _train(arm: Arm, watch: Watch) -> None:
    watch.phase = "forward"
    loss = arm.forward(arm.target.batch(0))
    watch.ledger.forward_end = len(watch.ledger.events)
    watch.phase = "backward"
    loss.backward()
    watch.known((grad for parameter in arm.parameters if (grad := parameter.grad) is not None), "gradients")
    watch.phase = "update"
    arm.update()


def _as_on_cuda(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer update all parameters at once, as it does by default on CUDA."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _fake(target: Target, mode: FakeTensorMode, batch_size: int | None) -> Target:
    """Return the target on fake tensors; with another batch size the batch is stretched."""
    known: dict[int, torch.Tensor] = {}

    def shadow(tensor: torch.Tensor) -> torch.Tensor:
        made = known.get(id(tensor))
        if made is None:
            made = mode.from_tensor(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, tensor.requires_grad)
            known[id(tensor)] = made
        return made

    real = [parameter for _, _, parameter in named_parameters(target.model)]
    for module in modules(target.model):
        for table in (module.__dict__.get("_parameters") or {}, module.__dict__.get("_buffers") or {}):
            for name, tensor in table.items():
                table[name] = None if tensor is None else shadow(tensor)
        if hasattr(module, "_flat_weights_names"):  # recurrent layers keep a list of their own
            names: Any = module._flat_weights_names
            module.__dict__["_flat_weights"] = [getattr(module, name, None) for name in names]
    old = batch_size and batch_size_of(target.batch(0))

    def stretched(tensor: torch.Tensor) -> Any:
        made = mode.from_tensor(tensor)
        if batch_size and tensor.dim() and tensor.shape[0] == old:
            return made.new_empty((batch_size, *tensor.shape[1:]))
        return made

    batch = mapped(lambda leaf: stretched(leaf) if isinstance(leaf, torch.Tensor) else leaf, target.batch(0))
    return rebound(replace(target, batches=[batch]), [(one, shadow(one)) for one in real])


def batch_size_of(batch: Any) -> int:
    """Return the first length of the first tensor that has one."""
    return next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim()), 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        # Said by torch's own context manager for oneDNN's flags, whatever it is given.
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        yield


def fitting_batch(make: Callable[[], Target], chosen: Precision, room: int) -> int:
    """Return the largest batch whose predicted step fits so many bytes; 0 where none does."""

    def need(size: int) -> float:
        try:
            return predict(make, chosen, batch_size=size).split.peak_bytes
        except StepRaised:
            return math.inf  # some models do not train on a single sample

    low, high, at, stride = 0, 1 << 20, batch_size_of(make().batch(0)), 1
    needs: dict[int, float] = {}
    while low + 1 < high:
        needs[at] = need(at)
        low, high = (at, high) if needs[at] <= room else (low, at)
        at = _guess(needs, room, low, high)
        # Where the line points outside of what is still open, go on from that end in growing strides.
        if low < at < high:
            stride = 1
            continue
        at = min(low + stride, high - 1) if at <= low else max(high - stride, low + 1)
        stride *= 2
    return low


def _guess(needs: dict[int, float], room: int, low: int, high: int) -> int:
    """Return where the line through the ends of what is open, or through the last two below, meets the room."""
    known = sorted(size for size in needs if math.isfinite(needs[size]) and size <= high)[-2:]
    if len(known) < _LINE:
        return 2 * low or high // 2
    one, two = known
    slope = (needs[two] - needs[one]) / (two - one)
    return int(one + (room - needs[one]) / slope) if slope > 0 else 2 * two
