"""A CPU that stands in for CUDA for a whole script: devices, autocast, scaler and queries.

Only calls that name a device are wrapped, none that computes: an operation costs what it did. Tensors stay CPU
tensors and say so; what a script asks of `torch.cuda` is answered as one GPU would.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from inspect import isfunction
from typing import Any, ClassVar

import torch
import torch.utils._device as device_module
from torch.amp import autocast_mode, grad_scaler
from torch.utils import _triton

from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.wide import WideCompute
from ampcheck.observe.patches import Original, Patches
from ampcheck.observe.script.cuda.cuda_answers import answers
from ampcheck.observe.script.cuda.cuda_jobs import jobs_on_cpu
from ampcheck.observe.script.cuda.graphs import graphs_on_cpu

_BEFORE_ENABLED = 4  #: arguments of a scaler between its device and `enabled`
_DEVICES = (str, int, torch.device)
_METHODS = ("new_tensor", "new_zeros", "new_ones", "new_full", "new_empty")
_TYPES = tuple(name for name in vars(torch.cuda) if name.endswith("Tensor"))  #: FloatTensor and its like


class AsCuda:
    """The stand-in; autocast on "cuda" acts on the CPU, by CUDA's rules, from the first region on."""

    now: "ClassVar[AsCuda | None]" = None  #: the one that stands in

    def __init__(self, *, available: bool) -> None:
        """Begin to stand in; `available` is what `torch.cuda.is_available()` answers."""
        AsCuda.now = self
        self._patches = Patches()
        self._stack = ExitStack()
        self.emulating = False  #: CUDA's casting rules are in force
        self._beginning = threading.Lock()
        self._wide = threading.local()  #: of a thread: what computes half precision there
        self._available = available
        #: What wakes regions and scalers that were made before the script asked for a CUDA device.
        self._paused: list[Callable[[], None]] = []
        self.woken: Callable[[Any], None] = lambda _: None  #: hears of scalers that come alive late
        self.used = False  #: the script asked for something of CUDA's, and got it
        self._devices()
        self._amp()
        self._queries(available=available)
        self._patches.put(threading.Thread, "_bootstrap_inner", self._in_thread)
        jobs_on_cpu(self._patches, self._mapped)
        graphs_on_cpu(self._patches)
        self._patches.put(torch.jit, "script", self._plainly)

    def close(self) -> None:
        """Take everything away."""
        AsCuda.now = None
        self._patches.restore()
        _triton.has_triton.cache_clear()  # it keeps its answer, which was that of the stand-in
        self._stack.close()

    def paused(self) -> AbstractContextManager[None]:
        """Let torch be itself for a while."""
        return self._patches.paused()

    def _plainly(self, original: Original, *args: Any, **kwargs: Any) -> Any:
        """Let TorchScript compile torch's own functions, which it knows by identity."""
        with self.paused():
            return original(*args, **kwargs)

    @property
    def _awake(self) -> bool:
        """Tell whether mixed precision is CUDA's: a script that never asks for its devices trains on the CPU."""
        return self._available or self.used

    def _touch(self) -> None:
        self.used = True
        waking, self._paused = self._paused, []
        for wake in waking:
            wake()

    def _emulate(self) -> None:
        """Begin to cast as CUDA does; half precision is computed as on a GPU, and faster than natively."""
        self.used = True
        with self._beginning:  # threads may enter their first regions at once
            if not self.emulating:
                self._stack.enter_context(cuda_casting())
                self.emulating = True
        if not hasattr(self._wide, "here"):
            self._wide.here = self._stack.enter_context(WideCompute())

    def _in_thread(self, original: Original, thread: threading.Thread) -> Any:
        """Run a thread of the script's that begins."""
        if not self.emulating:
            return original(thread)
        with WideCompute() as self._wide.here:
            return original(thread)

    # -- devices

    def _mapped(self, device: Any) -> Any:
        """Return the CPU for a CUDA device, and anything else as it is."""
        if isinstance(device, torch.device):
            named = device.type == "cuda"
        elif isinstance(device, str):
            named = device.partition(":")[0] == "cuda"
        else:
            named = isinstance(device, int) and not isinstance(device, bool)  # the number of a GPU
        if not named:
            return device
        self._touch()
        return torch.device("cpu")

    def _on_cpu(self, original: Original) -> Callable[..., Any]:
        @functools.wraps(original)
        def on_cpu(*args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = self._mapped(kwargs["device"])
            kwargs.pop("pin_memory", None)
            return original(*args, **kwargs)

        return on_cpu

    def _moved(self, original: Original) -> Callable[..., Any]:
        @functools.wraps(original)
        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = self._mapped(kwargs["device"])
            if args and isinstance(args[0], _DEVICES):
                args = (self._mapped(args[0]), *args[1:])
            return original(tensor, *args, **kwargs)

        return to

    def _devices(self) -> None:
        wrap, put, set_ = self._patches.wrap, self._patches.put, self._patches.set
        makers = set(map(id, device_module._device_constructors()))
        for owner in (torch, torch.fft):
            for name, value in list(vars(owner).items()):
                if id(value) in makers:
                    wrap(owner, name, self._on_cpu)
        for name in _METHODS:
            wrap(torch.Tensor, name, self._on_cpu)
        wrap(torch.Tensor, "to", self._moved)
        lazy: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
        set_(lazy, "_allowed_methods", [*lazy._allowed_methods, torch.Tensor.to])  # known by identity
        set_(torch.Tensor, "cuda", lambda tensor, *_, **__: self._stayed(tensor))
        set_(torch.Tensor, "pin_memory", lambda tensor, *_, **__: tensor)
        set_(torch.Tensor, "record_stream", lambda *_: None)
        put(device_module.DeviceContext, "__init__", self._context)
        wrap(torch, "Generator", self._generator)
        put(torch, "load", self._load)

    def _stayed(self, tensor: torch.Tensor) -> torch.Tensor:
        self._touch()
        return tensor

    def _context(self, original: Original, context: Any, device: Any) -> Any:
        return original(context, self._mapped(device))

    def _generator(self, original: Original) -> Callable[..., Any]:
        mapped = self._mapped

        class Kind(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, original)  # type: ignore[arg-type]  # it is a class

        class Generator(metaclass=Kind):
            def __new__(cls, device: Any = "cpu") -> Any:  # one of torch's own
                return original(mapped(device))

        return Generator

    def _load(self, original: Original, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(f, self._mapped(map_location), *args, **kwargs)

    # -- mixed precision

    def _amp(self) -> None:
        put = self._patches.put
        put(autocast_mode.autocast, "__init__", self._region)
        put(grad_scaler.GradScaler, "__init__", self._scaler)
        put(torch, "is_autocast_enabled", self._enabled)
        put(torch, "get_autocast_dtype", self._query)
        put(torch, "set_autocast_enabled", self._switch)
        put(torch, "set_autocast_dtype", self._query)
        put(autocast_mode, "_cast", self._cast)
        put(torch, "get_autocast_gpu_dtype", self._gpu_dtype)
        put(torch.cuda.amp.common, "amp_definitely_not_available", self._no_amp)

    def _no_amp(self, original: Callable[[], bool]) -> bool:
        return not self._awake and original()

    def _region(
        self,
        original: Original,
        region: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,  # noqa: FBT001, FBT002  # torch's own signature
        cache_enabled: bool | None = None,  # noqa: FBT001
    ) -> None:
        if str(device_type).partition(":")[0] == "cuda" and not self._awake:
            original(region, device_type, dtype, enabled, cache_enabled)
            self._wakes(region, lambda it: it.__init__("cuda", dtype, enabled, cache_enabled))
            return
        if str(device_type).partition(":")[0] == "cuda":
            dtype = dtype or torch.float16
            device_type = "cpu"
            if enabled:
                self._emulate()
        original(region, device_type, dtype, enabled, cache_enabled)

    def _scaler(
        self, original: Original, scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any
    ) -> None:
        if device == "cuda" and not self._awake:
            original(scaler, device, *args, **kwargs)
            self._wakes(scaler, lambda it: self._wake_scaler(it, original, *args, **kwargs))
            return
        # In torch's order: init_scale, growth_factor, backoff_factor, growth_interval, enabled.
        if device == "cuda" and kwargs.get("enabled", args[4] if len(args) > _BEFORE_ENABLED else True):
            self._emulate()  # now, and not within the first step that enters a region
        original(scaler, "cpu" if device == "cuda" else device, *args, **kwargs)

    def _wakes(self, thing: Any, wake: Callable[[Any], None]) -> None:
        """Let a region or a scaler be CUDA's, should the script ask for a CUDA device after it was made."""
        held = weakref.ref(thing)

        def alive() -> None:
            found = held()
            if found is not None:
                wake(found)

        self._paused.append(alive)

    def _wake_scaler(self, scaler: Any, original: Original, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("enabled", args[4] if len(args) > _BEFORE_ENABLED else True):
            self._emulate()
            original(scaler, "cpu", *args, **kwargs)
            self.woken(scaler)

    def _query(self, original: Original, *args: Any) -> Any:
        if not self._awake:
            return original(*args)
        if not args or isinstance(args[0], (bool, torch.dtype)):
            return original("cpu", *args)
        return original("cpu" if args[0] == "cuda" else args[0], *args[1:])

    def _enabled(self, original: Original, *args: Any) -> Any:
        # A region of the CPU's own is none of CUDA's; once there was one of those, the CPU's flag is CUDA's.
        return self._query(original, *args) if self.emulating else original(*args)

    def _switch(self, original: Original, *args: Any) -> Any:
        if args[-1] and (len(args) == 1 or args[0] == "cuda"):
            self._emulate()
        return self._query(original, *args)

    def _gpu_dtype(self, original: Callable[[], Any]) -> Any:
        return torch.get_autocast_dtype("cpu") if self._awake else original()

    def _cast(self, original: Original, value: Any, device: str, dtype: torch.dtype) -> Any:
        return original(value, "cpu" if device == "cuda" and self._awake else device, dtype)

    # -- torch.cuda

    def _queries(self, *, available: bool) -> None:
        given = answers(torch.cuda, available=available)
        if available:
            given |= {(torch.cuda, name): getattr(torch, name) for name in _TYPES}
        for (owner, name), answer in given.items():
            if hasattr(owner, name):
                self._patches.set(owner, name, _own(answer))
        # No step is captured into a graph here; asking whether one is would need a driver.
        check = "_accelerator_graph_capture_health_check"
        self._patches.set(torch.optim.Optimizer, check, lambda _: None)


def _own(answer: Any) -> Any:
    """Return a function or class of one's own: torch's compiler refuses one that stands under two names."""
    if isinstance(answer, type) and answer.__module__ == answers.__module__:
        return type(answer.__name__, (answer,), {})
    if not isfunction(answer):
        return answer

    def own(*args: Any, **kwargs: Any) -> Any:
        return answer(*args, **kwargs)

    return own
