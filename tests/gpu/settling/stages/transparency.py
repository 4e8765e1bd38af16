"""Stage d: steps with the recorder and without it on CUDA, bit for bit; streams, graphs, waits inside a step."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from witness import installed, left_behind, module_hooks_of

from ampcheck.observe.layers import LayerRecorder
from ampcheck.observe.recorder import Recorder
from ampcheck.run.watch_loop import watch
from settling.keep import Row
from settling.models import MAKERS, Step, made
from settling.plan import Scope
from settling.work import Job

_SMALL = ("mlp", "cnn_batch_norm")
_STEPS = 6
RECORDERS = {"operations": Recorder, "layers": LayerRecorder}


def jobs(scope: Scope) -> Iterator[Job]:
    """Yield waits and streams first, then every model; last what may leave CUDA broken."""
    if scope.device == "cuda":
        for ask in (waits, stream):
            yield Job(ask.__name__, ask)
    for maker in MAKERS:
        name = maker.__name__
        if not scope.small or name in _SMALL:
            yield Job(f"step {name}", partial(steps, name, scope.device))
    for name in _SMALL:
        yield Job(f"loop {name}", partial(loop, name, scope.device))
    if scope.device == "cuda":
        yield Job("graph", graph)


def steps(name: str, device: str) -> Row:
    """Compare a step with one under each recorder, in fp16 and bf16; what two bare steps differ in says nothing."""
    differ, left, unstable = [], [], []
    for dtype in (torch.float16, torch.bfloat16):
        bare, again = (_step(made(name, device), nullcontext(), device, dtype) for _ in range(2))
        shaky = {key for key in bare if not _same(bare[key], again[key])}
        unstable += [f"{key}, {dtype}" for key in shaky]
        for kind, recorder in RECORDERS.items():
            step = made(name, device)
            hooks, things = module_hooks_of(step.model), installed()
            seen = _step(step, recorder(step.model), device, dtype)
            differ += [f"{key}, {kind}, {dtype}" for key in bare.keys() - shaky
                       if not _same(bare[key], seen.get(key))]  # fmt: skip
            left += left_behind(things, installed())
            left += [key for key, count in module_hooks_of(step.model).items() if count != hooks[key]]
    return {"differ": differ, "left behind": left, "unstable": unstable, "compared": 4 * len(bare)}


def _step(step: Step, mode: AbstractContextManager[Any], device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return what a step leaves: loss, gradients, buffers, random state."""
    torch.manual_seed(7)
    with _deterministic(), mode:
        with torch.autocast(device, dtype):
            loss = step.loss(step.model, step.batch)
        (loss * 1024.0).backward()
    found: dict[str, Any] = {"loss": loss.detach(), "random": torch.get_rng_state()}
    if device == "cuda":
        found["random on CUDA"] = torch.cuda.get_rng_state()
    found |= {f"grad {name}": parameter.grad for name, parameter in step.model.named_parameters()}
    return found | {f"buffer {name}": buffer.clone() for name, buffer in step.model.named_buffers()}


class _deterministic:  # noqa: N801  # used as a function
    """Deterministic algorithms, where there are any; what has none says so and is compared without."""

    def __enter__(self) -> None:
        self._before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(mode=True, warn_only=True)

    def __exit__(self, *_raised: object) -> None:
        torch.use_deterministic_algorithms(self._before)


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def loop(name: str, device: str) -> Row:
    """Compare a training loop with a GradScaler, watched and not: weights, and the scaler's history."""
    bare, watched = _trained(name, device, watched=False), _trained(name, device, watched=True)
    differ = [key for key in bare if not _same(bare[key], watched.get(key))]
    return {"differ": differ, "compared": len(bare)}


def _trained(name: str, device: str, *, watched: bool) -> dict[str, Any]:
    step = made(name, device)
    optimizer = torch.optim.SGD(step.model.parameters(), lr=0.01)
    # Large enough that the first steps are skipped.
    scaler = torch.amp.GradScaler(device, init_scale=2.0**24, growth_interval=2)
    scales = []
    watching = watch(step.model, optimizer, scaler, every=2) if watched else nullcontext()
    with _deterministic(), watching:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
                loss = step.loss(step.model, step.batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    found: dict[str, Any] = {key: value.detach() for key, value in step.model.state_dict().items()}
    return found | {"scales": torch.tensor(scales)}


def waits() -> Row:
    """Record a step while CUDA raises at every wait; then count the transfers of fetching the record."""
    step = made("cnn_batch_norm", "cuda")
    _step(step, Recorder(step.model), "cuda", torch.float16)  # kernels are compiled and places found
    recorder = Recorder(step.model)
    raised = _refused(lambda: _plain(step, recorder))
    bare = _refused(lambda: _plain(step, nullcontext()))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        recorder.fetch()
        torch.cuda.synchronize()
    copies = sum("Memcpy DtoH" in event.name for event in profiled.events())
    return {"raised": raised, "raised bare": bare, "transfers after": copies}


def _plain(step: Step, mode: AbstractContextManager[Any]) -> None:
    with mode:
        with torch.autocast("cuda", torch.float16):
            loss = step.loss(step.model, step.batch)
        loss.backward()


def _refused(run: Callable[[], object]) -> str:
    """Return what a run raises where every wait is an error; nothing: it did not wait."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def stream() -> Row:
    """Compare a step on a stream of its own, and its statistics with those of the usual stream."""
    bare = _step(made("cnn_batch_norm", "cuda"), nullcontext(), "cuda", torch.float16)
    traces = []
    for on in (torch.cuda.current_stream(), torch.cuda.Stream()):
        step = made("cnn_batch_norm", "cuda")
        recorder = Recorder(step.model)
        torch.cuda.synchronize()
        with torch.cuda.stream(on):
            seen = _step(step, recorder, "cuda", torch.float16)
        torch.cuda.synchronize()
        traces.append(recorder.trace(recorder.fetch()))
    differ = [key for key in bare if not _same(bare[key], seen.get(key))]
    return {
        "differ": differ,
        "same statistics": traces[0].sites == traces[1].sites,
        "sites": len(traces[0].sites),
    }


def graph() -> Row:
    """Replay a captured step inside a recorded one, and capture a step that is recorded."""
    replayed = [_replayed(nullcontext), _replayed(Recorder)]
    row: Row = {"differ": [] if _same(*replayed) else ["a replayed graph"]}
    try:
        captured = _replayed(nullcontext, while_capturing=Recorder)
        row["captured while recording"] = "same" if _same(replayed[0], captured) else "different"
    except RuntimeError as error:
        row["captured while recording"] = f"raised {str(error).partition(chr(10))[0][:160]}"
    return row


def _replayed(
    around: Callable[..., AbstractContextManager[Any]],
    while_capturing: Callable[..., AbstractContextManager[Any]] = nullcontext,
) -> torch.Tensor:
    step = made("mlp", "cuda")
    aside = torch.cuda.Stream()
    with torch.no_grad(), torch.autocast("cuda", torch.float16, cache_enabled=False):
        with torch.cuda.stream(aside):
            step.model(step.batch[0])
        torch.cuda.synchronize()
        graphed = torch.cuda.CUDAGraph()
        with while_capturing(step.model), torch.cuda.graph(graphed):
            out = step.model(step.batch[0])
        step.batch[0].mul_(0.5)
        with around(step.model):
            graphed.replay()
    torch.cuda.synchronize()
    return out.detach().clone()
