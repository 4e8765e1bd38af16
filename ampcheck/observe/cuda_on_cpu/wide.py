"""Low-precision operators on the CPU as a GPU computes them: products of halves, summed in float32.

The CPU's own half-precision kernels are slow (resnet18, forward and backward: 13 times float32) or missing.
The heavy ones are run in float32 on the same, already rounded inputs, and the results are rounded back.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ampcheck.observe.cuda_on_cpu.dispatcher import Operator
from ampcheck.observe.dtypes import HALVES
from ampcheck.observe.modes import OwnMode

_HALF = frozenset({torch.float16, torch.complex32})
_NAMES = {"Half": _HALF, "ComplexHalf": _HALF, "BFloat16": frozenset({torch.bfloat16})}
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_WIDE = frozenset(_WIDER.values())
_MISSING = re.compile(
    "not implemented for '(Half|BFloat16|ComplexHalf)'"
    "|MKL FFT doesn't support tensors of type: (Half|ComplexHalf)"
)
# Decompositions and solvers have no half kernels on a GPU either: there, too, they must raise.
_SOLVERS = re.compile(
    r"aten::_?(linalg|lu|cholesky|geqrf|orgqr|ormqr|triangular_solve|lstsq|svd|inverse|pinverse)"
)

_HEAVY = (
    "convolution _convolution convolution_backward mkldnn_convolution "
    "mm addmm addmm_ _addmm_activation bmm baddbmm baddbmm_ addbmm addbmm_ "
    "mv addmv addmv_ dot vdot linear mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward"
)
# The logarithm of the softmax's sum stays in float32 between attention's forward and backward.
_FLOAT32_ARGUMENTS = {"_scaled_dot_product_flash_attention_for_cpu_backward": frozenset({5})}
_FLOAT32_RESULTS = {"_scaled_dot_product_flash_attention_for_cpu": frozenset({1})}


class _Rule(NamedTuple):
    """How an operator is widened."""

    dtypes: frozenset[torch.dtype]  #: the low ones for which it is
    learned: bool  #: because the CPU has no kernel: its result dtypes are then inferred, not known
    float32_arguments: frozenset[int] = frozenset()  #: positions of such tensors among low ones
    float32_results: frozenset[int] = frozenset()


def execute(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator below autograd; return what `func(*args, **kwargs)` would, summed in float32.

    Operators whose CPU kernel is missing for a low dtype run in float32 too.
    """
    rule = _rules.get(func)
    if rule is not None:
        low = _low_dtype(rule, args, kwargs)
        if low is not None:
            return _widened(func, rule, low, args, kwargs)
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        rule = _lesson(func, error)
        low = rule and _low_dtype(rule, args, kwargs)
        if rule is None or low is None:
            raise
    return _widened(func, rule, low, args, kwargs)


class WideCompute(OwnMode):
    """Runs every operator through `execute`, and records nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`."""
        return execute(func, args, kwargs or {})


def _lesson(func: Any, error: RuntimeError) -> _Rule | None:
    """Return the rule that follows from `error`, remembered from now on; None if no kernel is missing."""
    missing = _MISSING.search(str(error))
    if missing is None or not isinstance(func, Operator) or _SOLVERS.match(func._schema.name):
        return None
    known = _rules.get(func)
    if known is not None and not known.learned:
        return None
    dtypes = _NAMES[missing[1] or missing[2]] | (known.dtypes if known else frozenset())
    rule = _rules[func] = _Rule(dtypes, learned=True)
    return rule


def _low_dtype(rule: _Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """Return the low dtype that `rule` widens here, None if the call is to be left as it is.

    A known operator refuses mixed dtypes, and still has to when it is run in float32.
    """
    if not rule.learned and args[0].dtype not in HALVES:
        return None  # soon, for float32 steps: a known operator's first argument is a tensor
    low = None
    for at, tensor in _tensors(args, kwargs):
        dtype = tensor.dtype
        if dtype in rule.dtypes and tensor.is_cpu and low in {None, dtype}:
            low = dtype
        elif dtype.is_floating_point and not rule.learned and at not in rule.float32_arguments:
            return None
    return low


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[int, torch.Tensor]]:
    for at, value in enumerate((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            yield at, value
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield at, item


def _widened(
    func: Operator, rule: _Rule, low: torch.dtype, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    wide_args = tuple(_map(_widen, value) for value in args)
    wide_kwargs = {name: _map(_widen, value) for name, value in kwargs.items()}
    inferred = _inferred_dtypes(func, args, kwargs) if rule.learned else ()
    results = func(*wide_args, **wide_kwargs)
    given = [*args, *kwargs.values()]
    wide = [*wide_args, *wide_kwargs.values()]
    written = {id(wide[at]): _write_back(given[at], wide[at]) for at in _written(func, args, kwargs)}

    def rounded(at: int, result: Any) -> Any:
        if id(result) in written:
            return written[id(result)]
        if not isinstance(result, torch.Tensor) or result.dtype not in _WIDE or at in rule.float32_results:
            return result
        return result.to(inferred[at] if at < len(inferred) else low)

    if isinstance(results, list | tuple):
        return type(results)(rounded(at, result) for at, result in enumerate(results))
    return rounded(0, results)


def _written(func: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
    """Return which of the values in `args` and then `kwargs` the operator changes."""
    names = [slot.name for slot in func._schema.arguments if slot.is_write]
    if not names:
        return []
    order = [slot.name for slot in func._schema.arguments[: len(args)]] + list(kwargs)
    return [at for at, name in enumerate(order) if name in names]


def _write_back(given: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Copy what an operator wrote into a widened argument to the argument itself, and return that."""
    if given is not wide:
        if given.shape != wide.shape:
            given.resize_(wide.shape)
        given.copy_(wide)
    return given


def _inferred_dtypes(func: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.dtype]:
    """Return the result dtypes of the call as it was made, by torch's shape inference; [] if it has none."""

    def shadow(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    try:
        results = func(
            *(_map(shadow, value) for value in args), **{k: _map(shadow, v) for k, v in kwargs.items()}
        )
    except (NotImplementedError, RuntimeError):
        return []
    return [result.dtype for result in (results if isinstance(results, list | tuple) else [results])]


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    return [change(item) for item in value] if isinstance(value, list | tuple) else change(value)


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(_WIDER[value.dtype]) if value.dtype in _WIDER and value.is_cpu else value
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _heavy_rules() -> dict[Operator, _Rule]:
    """Return the rules of this torch's heavy operators, for all overloads but those that name a dtype."""
    rules = {}
    for name in _HEAVY.split():
        packet = getattr(torch.ops.aten, name, None)
        for variant in packet.overloads() if packet is not None else ():
            if "dtype" not in variant:
                rules[getattr(packet, variant)] = _Rule(
                    HALVES,
                    learned=False,
                    float32_arguments=_FLOAT32_ARGUMENTS.get(name, frozenset()),
                    float32_results=_FLOAT32_RESULTS.get(name, frozenset()),
                )
    return rules


_rules = _heavy_rules()


@functools.cache
def heavy() -> frozenset[Operator]:
    """Return the operators that multiply matrices: those which Tensor Cores run."""
    return frozenset(func for func, rule in _rules.items() if not rule.learned)
