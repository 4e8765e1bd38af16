"""An operator's result on a device, in exact arithmetic and emulated, and how far these are from each other."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from settling.fixed import levels, roundings
from settling.keep import Row
from settling.operators import Operator, by_name

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
#: So many elements of a result are kept, spread evenly.
KEPT = 256


def inputs(operator: Operator, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, ...]:
    """Return an operator's inputs, rounded to a dtype."""
    return tuple(given.to(dtype).to(device) for given in operator.inputs())


def exact(operator: Operator, dtype: torch.dtype) -> Tensor:
    """Return an operator's result in float64 from the inputs as the dtype holds them."""
    return operator.call(*(given.double() for given in inputs(operator, dtype)))


def emulated(operator: Operator, dtype: torch.dtype) -> Tensor:
    """Return an operator's result as ampcheck emulates it on this CPU."""
    with WideCompute():
        return operator.call(*inputs(operator, dtype))


@contextmanager
def setting(name: str) -> Iterator[None]:
    """Set how CUDA adds up products, and put it back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    names = ["allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction",
             "allow_fp16_accumulation", "allow_tf32"]  # fmt: skip
    names = [each for each in names if _has(matmul, each)]
    before, tf32 = {each: getattr(matmul, each) for each in names}, cudnn.allow_tf32
    wanted = dict(before, allow_tf32=name == "tf32")
    if name not in {"default", "tf32"}:
        wanted |= dict.fromkeys(names[:2], False)
    if name == "float16 sums":
        wanted["allow_fp16_accumulation"] = True
    try:
        for each in names:
            setattr(matmul, each, wanted[each])
        cudnn.allow_tf32 = name == "tf32"
        yield
    finally:
        for each in names:
            setattr(matmul, each, before[each])
        cudnn.allow_tf32 = tf32


def _has(matmul: object, name: str) -> bool:
    try:
        getattr(matmul, name)
    except (AttributeError, AssertionError):
        return False
    return True


def sampled(result: Tensor) -> Tensor:
    """Return elements of a result that are spread evenly, on the CPU."""
    flat = result.detach().flatten().cpu()
    places = torch.linspace(0, len(flat) - 1, min(KEPT, len(flat)), dtype=torch.float64).long()
    return flat[places]


def encoded(values: Tensor) -> str:
    """Return the bytes of numbers as text."""
    return base64.b64encode(bytes(values.contiguous().view(torch.uint8).tolist())).decode()


def decoded(text: str, dtype: torch.dtype) -> Tensor:
    """Return numbers from their bytes."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)


def measured(name: str, dtype_name: str, how: str, device: str) -> Row:
    """Return one operator's distances under one setting, with some of its results."""
    operator, dtype = by_name(name), DTYPES[dtype_name]
    with setting(how):
        silicon = operator.call(*inputs(operator, dtype, device)).detach().cpu()
    truth, here = exact(operator, dtype), emulated(operator, dtype)
    unit = "tf32" if how == "tf32" else silicon.dtype
    return {
        "dtype": str(silicon.dtype)[6:],
        "silicon": levels(roundings(silicon, truth, unit)),
        "emulation": levels(roundings(here, truth, unit)),
        "apart": levels(roundings(silicon, here, unit)),
        "values": encoded(sampled(silicon)),
    }


def apart_now(name: str, dtype_name: str, row: Row) -> float:
    """Return how far this CPU's emulation is from the kept results of the GPU, in roundings."""
    operator, dtype = by_name(name), DTYPES[dtype_name]
    result = emulated(operator, dtype)
    if str(result.dtype)[6:] != row["dtype"]:
        return float("inf")
    kept = decoded(row["values"], result.dtype)
    # The unit is that of the whole result: sampled elements alone have another RMS.
    whole = result.detach().flatten().clone()
    places = torch.linspace(0, len(whole) - 1, min(KEPT, len(whole)), dtype=torch.float64).long()
    silicon = whole.clone()
    silicon[places] = kept
    return float(roundings(silicon, whole, whole.dtype).max())
