"""On the CPU, what the user's code says about CUDA's autocast holds; in the FP32 run all of it is off."""

import contextlib
import threading

import pytest
import torch
from torch import nn
from witness import installed, left_behind

from ampcheck.observe.cuda_on_cpu.stand_in import autocast_stands_in
from ampcheck.observe.step import casting_rules

CPU = torch.device("cpu")


def product() -> torch.dtype:
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.mark.parametrize(
    "region",
    [
        lambda **k: torch.autocast("cuda", **k),
        lambda **k: torch.autocast("cuda:0", **k),
        lambda **k: torch.autocast(device_type="cuda", **k),
        lambda **k: torch.amp.autocast("cuda", **k),
        lambda **k: torch.autocast("cpu", **k),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_regions_for_cuda_act_on_the_cpu(region, dtype):
    with casting_rules(CPU, dtype):
        assert product() is torch.float32
        with region(dtype=dtype):
            assert product() is dtype
            with region(enabled=False):
                assert product() is torch.float32
            assert product() is dtype
        assert product() is torch.float32
    with casting_rules(CPU, None), region(dtype=dtype):
        assert product() is torch.float32
        assert not torch.is_autocast_enabled()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_names_too():
    with casting_rules(CPU, torch.float16), torch.cuda.amp.autocast():
        assert product() is torch.float16
    with (
        casting_rules(CPU, torch.float16),
        torch.autocast("cpu", torch.float16),
        torch.cuda.amp.autocast(enabled=False),
    ):
        assert product() is torch.float32

    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x):
        return x.dtype, torch.is_autocast_enabled()

    context = type("Context", (), {})()
    with casting_rules(CPU, torch.float16), torch.autocast("cpu", torch.float16):
        assert forward(context, torch.ones(1).half()) == (torch.float32, False)


def test_decorated_functions_enter_when_they_are_called():
    @torch.autocast("cpu", dtype=torch.float16)
    def decorated() -> torch.dtype:
        return product()

    with casting_rules(CPU, torch.float16):
        assert decorated() is torch.float16


@pytest.mark.parametrize("twice", [False, True])
def test_a_region_made_before_puts_back_the_state_of_its_own_device(twice):
    """A decorator in the user's file is made when the file is loaded: it asks about CUDA, and sets it."""
    region = torch.autocast("cuda", enabled=False)

    def state():
        return [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in ("cuda", "cpu")]

    before = state()
    inside = autocast_stands_in() if twice else contextlib.nullcontext()
    with casting_rules(CPU, torch.float16), inside, torch.autocast("cpu", torch.float16):
        region(product)()
        assert torch.is_autocast_enabled("cpu")
    assert state() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_region_without_a_dtype_keeps_the_one_around_it(dtype):
    with casting_rules(CPU, dtype), torch.autocast("cpu", dtype=dtype), torch.autocast("cuda"):
        assert product() is dtype


def test_queries_answer_for_cuda():
    with casting_rules(CPU, torch.float16), torch.autocast("cpu", torch.float16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") is torch.float16
        assert torch.get_autocast_gpu_dtype() is torch.float16


def test_another_device_is_left_alone():
    with autocast_stands_in("cuda"):
        assert torch.is_autocast_enabled.__module__ != "ampcheck.observe.cuda_on_cpu.stand_in"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cpu")


def test_nested_and_thrown_through_everything_comes_back():
    before = installed()
    with (
        pytest.raises(ZeroDivisionError),
        autocast_stands_in(),
        autocast_stands_in(enabled=False),
        autocast_stands_in(),
    ):
        raise ZeroDivisionError
    assert left_behind(before, installed()) == []


def test_compiled_modules_run_eagerly_and_silently():
    ran = []

    class Model(nn.Module):
        def forward(self, x):
            ran.append(torch.compiler.is_compiling())
            return x * 2

    model = torch.compile(Model(), backend="eager")
    with casting_rules(CPU, None):
        model(torch.ones(2))
    assert ran == [False]


def test_a_thread_of_the_users_sees_the_same_queries():
    seen = []
    with casting_rules(CPU, torch.float16), torch.autocast("cpu", torch.float16):
        thread = threading.Thread(target=lambda: seen.append(torch.is_autocast_enabled("cuda")))
        thread.start()
        thread.join()
    assert seen == [False]  # autocast is a matter of each thread, on CUDA too
