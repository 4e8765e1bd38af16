"""CUDA graphs: what runs in one is not seen, and a watcher keeps still while one is captured.

Where a CPU stands in for CUDA, a graph is the list of the operations that ran while it was captured, run again.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.watcher import Watcher


def hear_graphs(patches: Patches, watcher: Watcher) -> None:
    """Let a watcher hear of CUDA graphs."""
    kind = torch.cuda.CUDAGraph
    patches.before(kind, "capture_begin", lambda *_, **__: watcher.capture_begins())
    patches.put(kind, "capture_end", functools.partial(_ends, watcher))
    patches.before(kind, "replay", lambda *_: watcher.replays())


def _ends(watcher: Watcher, original: Original, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(*args, **kwargs)
    finally:
        watcher.capture_ends()


def graphs_on_cpu(patches: Patches) -> None:
    """Let scripts that capture CUDA graphs run on a CPU."""
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.set(owner, "CUDAGraph", type("CUDAGraph", (_Graph,), dict(vars(_Graph))))
        patches.set(owner, "graph", _Capture)
        patches.set(owner, "graph_pool_handle", lambda *_: (0, 0))
        # What was to be captured runs eagerly: then it can be seen.
        patches.set(owner, "make_graphed_callables", lambda callables, *_, **__: callables)


class _Graph:
    """Operations that were captured, on the tensors that they had."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._mode = _Noting()

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """Begin to capture."""
        self._mode = _Noting()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        """Capture no more."""
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def replay(self) -> None:
        """Run what was captured again; results go where they went."""
        with unseen():
            for func, args, kwargs, before in self._mode.ran:
                _into(before, func(*args, **kwargs))

    def reset(self) -> None:
        """Forget what was captured."""
        self._mode = _Noting()

    def pool(self) -> tuple[int, int]:
        """Return a handle of the memory, which is nobody's."""
        return (0, 0)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Noting(TorchDispatchMode):
    """Notes operations, and which of their results have storage of their own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor | None]]] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        fresh = [
            one if isinstance(one, torch.Tensor) and _storage(one) not in given else None
            for one in tree_leaves(out)
        ]
        self.ran.append((func, args, kwargs, fresh))
        return out


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _into(before: list[torch.Tensor | None], now: Any) -> None:
    for held, fresh in zip(before, tree_leaves(now), strict=True):
        if held is not None:
            held.copy_(fresh)


class _Capture:
    """What `with torch.cuda.graph(graph):` enters."""

    def __init__(self, cuda_graph: Any, *_: Any, **__: Any) -> None:
        self._graph = cuda_graph

    def __enter__(self) -> Self:
        self._graph.capture_begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()
