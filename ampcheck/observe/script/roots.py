"""Finds the outermost modules that a script calls, and what the script calls them."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as module_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampcheck.observe.model.structure import modules
from ampcheck.observe.script.watched_thread import WatchedThread
from ampcheck.observe.source import frames, frames_match, locals_of, object_of, script_frames

_current_node = torch._C._current_autograd_node
#: Where a pipeline runs its stages: each is a module of its own, whatever its variable is called on its rank.
_STAGES = ("distributed/pipelining/stage.py", "distributed\\pipelining\\stage.py")
#: Where a pipeline finds out shapes: it runs its stages on memory that nobody has written.
_RUN_DRY = {"distributed/pipelining/stage.py": frozenset({"_forward_metadata_inference", "_shape_inference"})}
#: The function of torch.utils.checkpoint that runs a forward without gradients.
_CHECKPOINT = {"utils/checkpoint.py": frozenset({"forward"})}

_TABLES: tuple[dict[int, Any], ...] = (
    module_hooks._global_forward_pre_hooks,
    module_hooks._global_forward_hooks,
    module_hooks._global_forward_hooks_always_called,
)

Called = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]


def within_backward() -> bool:
    """Tell whether autograd is running, and has called a hook of the script's."""
    return _current_node() is not None


def trains() -> bool:
    """Tell whether what runs now will have a backward: also where a checkpoint computes it again for that."""
    return torch.is_grad_enabled() or frames_match(_CHECKPOINT)


class RootFinder:
    """Tells of outermost module calls while it listens; deaf, it costs nothing."""

    def __init__(self, called: Called, thread: WatchedThread) -> None:
        """Tell `called` of each call in a thread, before it runs."""
        self._called = called
        #: Is shown, too, of calls in which no gradient can be wanted.
        self.without_gradients: Called = lambda *_: None
        #: Is shown of the others, and then what they gave.
        self.with_gradients: Called = lambda *_: None
        self.returned: Callable[[Any], None] = lambda _: None
        #: Once they have been set, where hooks go in torch's tables: a graph is made anew for hooks it does not know.
        self._places: list[tuple[dict[int, Any], int, Any]] = []
        self.listening = False  #: calls are followed
        self._inside: torch.nn.Module | None = None
        self._thread = thread

    @property
    def inside(self) -> bool:
        """Tell whether a module is known to be running."""
        return self._inside is not None

    def listen(self) -> None:
        """Begin to follow calls."""
        if self.listening:
            return
        self._inside = None
        self.listening = True
        if not self._places:
            before = register_module_forward_pre_hook(self._enter)
            after = register_module_forward_hook(self._leave, always_call=True)
            ids = (before.id, after.id)
            self._places = [(table, id_, table[id_]) for table in _TABLES for id_ in ids if id_ in table]
        for table, id_, held in self._places:
            table[id_] = held

    def stop_listening(self) -> None:
        """Stop following calls."""
        for table, id_, _ in self._places:
            table.pop(id_, None)
        self.listening = False
        self._inside = None

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if is_compiling():
            return  # a graph is made of the call, and is not to hold us
        if self._inside is not None or not self._thread.runs or _current_node() is not None:
            return
        self._inside = module
        if frames_match(_RUN_DRY):
            return
        kwargs = sys._getframe(1).f_locals.get("kwargs")
        named = kwargs if isinstance(kwargs, dict) else {}
        self._called(module, args, named)
        (self.with_gradients if torch.is_grad_enabled() else self.without_gradients)(module, args, named)

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if not is_compiling() and module is self._inside:
            self._inside = None
            self.returned(output)


def name_in_script(module: torch.nn.Module) -> str:
    """Return what the code that calls a module calls it: a variable, an attribute of self, or its class."""
    for frame in frames():
        stage: Any = locals_of(frame).get("self") if frame.f_code.co_filename.endswith(_STAGES) else None
        if getattr(stage, "submod", None) is module:
            return f"stage{stage.stage_index}"
    names = (_name_in(frame, module) for frame in script_frames())
    return next(filter(None, names), type(module).__name__)


def holder_in_script(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the outermost module whose method calls a module that it holds: a model without a forward of its own."""
    found, made = None, []
    for frame in script_frames():
        holder = object_of(frame)
        if frame.f_code.co_name == "__init__":
            made.append(holder)
        elif isinstance(holder, torch.nn.Module) and any(part is module for part in modules(holder)):
            found = holder
    unmade = found is None or found is module or any(one is found for one in made)
    return None if unmade else found


def _name_in(frame: FrameType, module: torch.nn.Module) -> str:
    """Return a name from a frame: an attribute of self says more than a variable, which may be a loop's."""
    own_name = frame.f_code.co_varnames[0] if object_of(frame) is not None else ""
    held = getattr(locals_of(frame).get(own_name), "__dict__", None)
    own = [held, held.get("_modules") or {}] if isinstance(held, dict) else []
    for names in (*own, locals_of(frame), frame.f_globals):
        for name, value in list(names.items()):
            if value is module and name != own_name:
                return str(name)
    return ""
