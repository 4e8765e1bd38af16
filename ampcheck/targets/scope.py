"""The names that a user's module or target object offers, and calling what stands behind them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ampcheck.errors import TargetError
from ampcheck.targets.userfile import UserModule, shown

MODEL_NAMES = ("model", "make_model", "build_model", "get_model", "create_model", "net")
BATCH_NAMES = tuple("batch batches make_batch get_batch inputs example_inputs example_input x".split())
CRITERION_NAMES = ("criterion", "loss_fn", "loss_function")
PREDICT_NAMES = ("predict", "generate", "infer", "sample")
OTHER_NAMES = ("loss", "optimizer", "after_step", "metric", "validation", "warmup", *PREDICT_NAMES)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where the contract's names are looked up."""

    names: Mapping[str, Any]
    user: UserModule

    @property
    def where(self) -> str:
        """Return the user's file as a person would write it."""
        return shown(self.user.file)

    def within(self, names: Mapping[str, Any]) -> "Scope":
        """Return the scope of a target object: it has to hold all it needs."""
        return replace(self, names=names)

    def first(self, names: tuple[str, ...]) -> tuple[str, Any] | None:
        """Return the first of the names that is defined, with its value."""
        return next(((name, self.names[name]) for name in names if self.names.get(name) is not None), None)

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call a function or class of the user's; one that asks for more is an error at its definition."""
        if not binds(function, **arguments):
            name = getattr(function, "__name__", type(function).__name__)
            raise TargetError(
                f"{name} needs arguments that ampcheck does not know; give them defaults",
                where=definition(function) or self.where,
                hint=f"def model():\n    return {name}(...)",
            )
        return function(**arguments)


def binds(function: Callable[..., Any], *args: Any, **arguments: Any) -> bool:
    """Say whether a call with these arguments fits the signature; unknown signatures are given the chance."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args, **arguments)
    except TypeError:
        return False
    return True


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a callable by name; None where it does not say, as some built-in ones."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def takes(function: Callable[..., Any], name: str) -> bool:
    """Say whether a function has a parameter of that name, or takes any."""
    parameters = parameters_of(function) or {}
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def definition(value: Any) -> str:
    """Return "file:line" where a function or class is written, "" if nobody knows."""
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{shown(code.co_filename)}:{code.co_firstlineno}"
    try:
        return f"{shown(inspect.getsourcefile(value) or '')}:{inspect.getsourcelines(value)[1]}"
    except (TypeError, OSError):
        return ""
