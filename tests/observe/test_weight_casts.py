"""The cache of weight casts. Matrix products are on the CPU's own list, too: torch's cache is the witness."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ampcheck.observe.cuda_on_cpu.casting import weight_casts
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting


class Names(TorchDispatchMode):
    """Notes operators and the dtypes they return."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        dtypes = tuple(
            item.dtype
            for item in (out if isinstance(out, tuple | list) else (out,))
            if hasattr(item, "dtype")
        )
        self.seen.append((str(func), dtypes))
        return out


def reuse(weight, values):
    return values @ weight + values @ weight


def under_no_grad_first(weight, values):
    with torch.no_grad():
        values @ weight
    return values @ weight


def under_no_grad_last(weight, values):
    first = values @ weight
    with torch.no_grad():
        values @ weight
    return first


def under_inference_mode_in_between(weight, values):
    with torch.inference_mode():
        values @ weight
    first = values @ weight
    with torch.inference_mode():
        values @ weight
    return first


def nested(weight, values):
    first = values @ weight
    with torch.autocast("cpu", torch.float16):
        second = values @ weight
    with torch.autocast("cpu", enabled=False):
        third = values @ weight
    return first + second + third + values @ weight


def nested_with_another_dtype(weight, values):
    first = values @ weight
    with torch.autocast("cpu", torch.bfloat16):
        try:
            return first + values @ weight
        except RuntimeError:  # torch's cache does not look at the dtype, so nor does ours
            return first * 2


def cleared(weight, values):
    first = values @ weight
    torch.clear_autocast_cache()
    return first + values @ weight


def uncached(weight, values):
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        return values @ weight + values @ weight


def of_a_view(weight, values):
    view = weight.detach().requires_grad_()[:]
    return values @ view + values @ view


def of_a_frozen_weight(weight, values):
    frozen = weight.detach()
    return values @ frozen + values @ frozen + values @ weight


def of_a_computed_weight(weight, values):
    computed = weight * 2
    return values @ computed + values @ computed


SCENARIOS = [
    reuse,
    under_no_grad_first,
    under_no_grad_last,
    under_inference_mode_in_between,
    nested,
    nested_with_another_dtype,
    cleared,
    uncached,
    of_a_view,
    of_a_frozen_weight,
    of_a_computed_weight,
]


def played(scenario, emulate):
    """Return the operators, the result and the gradient of a scenario under the CPU's or our autocast.

    Matrix products are on both lists, so for them the CPU's C++ kernels are a witness for ours.
    """
    torch.manual_seed(1)
    weight, values = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4)
    with cuda_casting() if emulate else torch.enable_grad(), Names() as names:
        with torch.autocast("cpu", torch.float16):
            out = scenario(weight, values)
        again = None
        with torch.autocast("cpu", torch.float16):
            again = values @ weight
        if out.requires_grad:
            (out.sum() + again.sum()).backward()
    return names.seen, out, weight.grad


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_weights_are_cast_as_often_as_by_torchs_own_cache(scenario):
    theirs, ours = played(scenario, emulate=False), played(scenario, emulate=True)
    assert sorted(map(str, ours[0])) == sorted(map(str, theirs[0]))
    torch.testing.assert_close(ours[1:], theirs[1:], atol=0, rtol=0)


def test_reused_weights_share_one_cast_so_gradients_add_up_in_half():
    names, _, _ = played(reuse, emulate=True)
    # One cast of the weight in each of two regions, and one of the values at each of three uses.
    assert sum("_to_copy" in name and dtypes == (torch.float16,) for name, dtypes in names) == 2 + 3
    assert ("aten.add.Tensor", (torch.float16,)) in names


@pytest.mark.parametrize("finish", ["leave autocast", "clear the cache", "leave the emulation"])
def test_no_weight_outlives_its_region(finish):
    weight = torch.randn(4, 4, requires_grad=True)
    alive = weakref.ref(weight)
    autocast, casting = torch.autocast("cpu", torch.float16), cuda_casting()
    casting.__enter__()
    autocast.__enter__()
    torch.ones(4, 4) @ weight
    del weight
    gc.collect()
    assert alive() is not None, "the cache should hold it, or this test shows nothing"
    if finish == "leave autocast":
        autocast.__exit__(None, None, None)
    elif finish == "clear the cache":
        torch.clear_autocast_cache()
    else:
        casting.__exit__(None, None, None)
    gc.collect()
    assert alive() is None
    if finish != "leave autocast":
        autocast.__exit__(None, None, None)
    if finish != "leave the emulation":
        casting.__exit__(None, None, None)


REGIONS = """
import threading, torch
from ampcheck.observe.cuda_on_cpu.casting import weight_casts
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting

def predict():
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    for _ in range(400):
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            net(torch.ones(4, 8))

clears = torch.clear_autocast_cache
with cuda_casting():
    threads = [threading.Thread(target=predict) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
assert torch.clear_autocast_cache is clears
print("through")
"""


def test_regions_that_threads_leave_while_others_cast_stall_nothing():
    done = subprocess.run(
        [sys.executable, "-c", REGIONS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "through\n"


FORK = """
import os, threading, torch
from ampcheck.observe.cuda_on_cpu import casting

held, done = threading.Event(), threading.Event()

def hold():
    with casting._turn:
        held.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    casting.clear_in_turn(torch.clear_autocast_cache)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "7\n"


def test_the_cache_is_kept_unseen_by_modes_hooks_and_settings():
    weight = torch.randn(4, 4, requires_grad=True)
    packed = []
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            cuda_casting(),
            torch.no_grad(),
            torch.device("meta"),
            torch.autograd.graph.saved_tensors_hooks(
                lambda kept: packed.append(kept.shape) or kept, lambda kept: kept
            ),
            Names() as names,
            torch.autocast("cpu", torch.float16),
        ):
            out = torch.ops.aten.mm.default(weight, weight)
    finally:
        torch.set_default_dtype(before)
    assert [name for name, _ in names.seen] == ["aten._to_copy.default", "aten.mm.default"]
    assert (out.dtype, packed) == (torch.float16, [])


def transformed(weight, values):
    """Return what function transforms give for a step: with a parameter, a plain and a closed-over weight."""

    def loss(weight, values):
        with torch.autocast("cpu", torch.float16):
            return (values @ weight).float().square().sum()

    plain = weight.detach()
    return [
        torch.func.grad(loss)(weight, values),
        torch.func.vmap(torch.func.grad(loss), (None, 0))(plain, values),
        torch.func.jvp(lambda moved: loss(moved, values), (plain,), (plain,))[1],
        torch.func.grad(lambda values: loss(weight, values))(values),
        torch.func.vmap(lambda row: loss(weight, row[None]))(values),
    ]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward-mode rules
def test_function_transforms_give_what_they_give_with_torchs_cache():
    torch.manual_seed(2)
    weight, values = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4)
    theirs = transformed(weight, values)
    with cuda_casting():
        ours = transformed(weight, values)
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_steps_give_what_they_give_with_torchs_cache(reentrant):
    def step():
        torch.manual_seed(4)
        weight, values = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        with torch.autocast("cpu", torch.float16):
            hidden = checkpoint(
                lambda given: (given @ weight).relu() @ weight, values, use_reentrant=reentrant
            )
            out = hidden @ weight
        out.float().square().sum().backward()
        return out, weight.grad, values.grad

    theirs = step()
    with cuda_casting():
        ours = step()
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_casts_go_with_their_region_whatever_keeps_what_they_are_tied_to(monkeypatch):
    """A recording keeps nodes of autograd a little longer: the next region must see the weight as it is by then."""
    kept, anchored = [], weight_casts._anchored

    def keeps():
        kept.append(anchored())
        return kept[-1]

    monkeypatch.setattr(weight_casts, "_anchored", keeps)
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    with cuda_casting():
        outs = []
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                outs.append(layer(x))
            with torch.no_grad():
                layer.weight.mul_(2)
                layer.bias.mul_(2)
    assert kept
    assert torch.equal(outs[1], 2 * outs[0])
