"""What the recorder needs to know of an operation before it first sees it run."""

import functools
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ampcheck.observe.reference.sharing import MESSAGES


class OpKind(Enum):
    """How an operation's result is recorded."""

    SKIP = auto()  #: no numbers of its own: metadata, uninitialised memory, integers for Python
    VIEW = auto()  #: other numbers of a tensor already seen, or a part of it
    SAME = auto()  #: a view of all elements, each once: what is known of the input holds
    CAST = auto()  #: a copy that may change the dtype
    COPY = auto()  #: a copy into an existing tensor
    MEASURE = auto()


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How to record one overload."""

    name: str  #: aten base name
    kind: OpKind
    rounds: bool = False  #: a number among its arguments is rounded to the dtype of its result


#: Memory whose contents nobody has written yet; its numbers mean nothing.
_UNWRITTEN = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided set_ resize_".split()
)
#: Between processes: the results may not have arrived yet, and reading them would wait.
_COMMUNICATION = frozenset({*MESSAGES, "fsdp"})
#: Views (and one copy-free relative) that hold every element of their input exactly once.
_SAME = frozenset(
    {
        *(
            "alias",
            "detach",
            "view",
            "_unsafe_view",
            "_reshape_alias",
            "t",
            "transpose",
            "permute",
            "numpy_T",
        ),
        *("unsqueeze", "squeeze", "unflatten", "swapaxes", "movedim", "adjoint", "view_as", "lift_fresh"),
    }
)
#: The last three are taken apart by autograd, and seen whole where inference mode leaves it out.
_CASTS = frozenset({"_to_copy", "clone", "_to_dense", "to", "type_as", "contiguous"})
#: Views whose schema does not say so, to let autograd treat their outputs as tensors of their own.
_UNSAFE_VIEWS = frozenset({"unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"})
#: Operations whose result, somewhere, is a number they were given: it has to survive the dtype. A factor, a
#: divisor or an exponent is not rounded: kernels for half precision compute with these in float32.
_ROUNDING = frozenset(
    """add sub rsub clamp clamp_min clamp_max masked_fill index_fill fill full full_like new_full scalar_tensor
    constant_pad_nd threshold hardtanh""".split()
)


@functools.cache
def plan_of(func: Any) -> OpPlan:  # noqa: PLR0911  # one line a kind
    """Return how to record an overload, from its name and schema alone; any result of others is measured."""
    # The public way parses the same schema from text; operators of higher order have none.
    schema = getattr(func, "_schema", None)
    if schema is None:
        return OpPlan(str(getattr(func, "__name__", func)), OpKind.MEASURE)
    space, _, name = schema.name.rpartition("::")
    if space in _COMMUNICATION:
        return OpPlan(name, OpKind.SKIP)
    tensors = [ret for ret in schema.returns if "Tensor" in str(ret.type)]
    if name in _UNWRITTEN or not tensors:
        return OpPlan(name, OpKind.SKIP)
    # The bits of a view in another dtype are other numbers.
    if name in _SAME and schema.overload_name != "dtype":
        return OpPlan(name, OpKind.SAME)
    if name in _CASTS:
        return OpPlan(name, OpKind.CAST)
    if name == "copy_":
        return OpPlan(name, OpKind.COPY)
    if name in _UNSAFE_VIEWS:
        return OpPlan(name, OpKind.VIEW)
    views = [ret for ret in tensors if ret.alias_info is not None and not ret.alias_info.is_write]
    if len(views) == len(tensors):
        return OpPlan(name, OpKind.VIEW)
    return OpPlan(name, OpKind.MEASURE, rounds=name.rstrip("_") in _ROUNDING)
