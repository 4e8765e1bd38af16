"""The CPU emulation against the kernels it stands for, called on tensors without storage; what it leaves."""

import itertools
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.observe.cuda_on_cpu.dispatcher import operator
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting
from ampcheck.observe.cuda_on_cpu.policy import casting_policy, refusal, registered
from ampcheck.observe.cuda_on_cpu.probing import forwarded

LOW = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.float8_e5m2)
# Not comparable one key further down: softmax calls CUDA's kernel itself, and cuDNN's weights need a GPU.
SPECIAL = {"aten::softmax.int", "aten::log_softmax.int", "aten::_cudnn_rnn"}
AUTOCAST_KEYS = [
    f"Autocast{name}" for name in ("CPU", "CUDA", "XPU", "MPS", "MTIA", "PrivateUse1", "XLA", "HPU")
]


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


def outcome(backend, name, dtypes, low):
    try:
        return forwarded(backend, name, dtypes, low)
    except RuntimeError as error:
        return str(error).split("\nException raised", maxsplit=1)[0]


def test_each_kernel_hands_on_what_cudas_own_kernel_does():
    names = sorted(casting_policy().keys() - SPECIAL)
    pairs = list(itertools.product(DTYPES, repeat=2))
    with cuda_casting():
        for turn, name in enumerate(names):
            # Every operator sees every pair of dtypes, first with one low dtype, then with the other; one that is
            # given a single tensor has no use for the second of a pair.
            slots = [str(slot.type) for slot in operator(name)._schema.arguments if not slot.kwarg_only]
            single = sum("Tensor" in kind for kind in slots) == 1 and not any("[" in kind for kind in slots)
            for at, dtypes in enumerate(pairs[:: len(DTYPES)] if single else pairs):
                low = LOW[(turn + at) % 2]
                assert outcome("cpu", name, dtypes, low) == outcome("cuda", name, dtypes, low), (
                    name,
                    dtypes,
                    low,
                )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(casting_policy().keys() - SPECIAL)),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=3, max_size=5),
    low=st.sampled_from(LOW),
)
def test_any_mixture_of_dtypes_is_cast_alike(name, dtypes, low):
    with cuda_casting():
        assert outcome("cpu", name, dtypes, low) == outcome("cuda", name, dtypes, low)


def test_operators_on_the_cpus_own_list_only_are_left_alone():
    with cuda_casting(), torch.autocast("cpu", torch.float16):
        values = torch.ones(2, 2, dtype=torch.float16)
        assert torch.stack([values, values.float()]).dtype is torch.float32
        assert (
            functional.pad(values[None], (1, 1), mode="reflect").dtype is torch.float16
        )  # float32 by the CPU's list


def test_the_banned_operator_raises_as_on_cuda():
    with cuda_casting(), torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError) as caught:
        functional.binary_cross_entropy(torch.full((2,), 0.5), torch.ones(2))
    assert str(caught.value) == refusal("aten::binary_cross_entropy")


def test_inside_cross_entropy_log_softmax_keeps_half():
    logits = torch.randn(3, 4, dtype=torch.float16)
    with cuda_casting(), torch.autocast("cpu", torch.float16), Names() as names:
        loss = functional.cross_entropy(logits, torch.tensor([0, 1, 2]))
        alone = logits.log_softmax(1)
    dtypes = dict(reversed(names.seen))
    assert dtypes["aten._log_softmax.default"] == (torch.float16,)
    assert (loss.dtype, alone.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_run_in_float16_as_cudnn_does(layer, low):
    module, values = layer(4, 5, num_layers=2, bidirectional=True), torch.randn(3, 2, 4, requires_grad=True)
    exact, _ = module(values)
    with cuda_casting(), torch.autocast("cpu", low):
        out, states = module(values)
        packed, _ = module(nn.utils.rnn.pack_padded_sequence(values, [3, 2]))
    out.float().sum().backward()
    assert {out.dtype, packed.data.dtype, *(state.dtype for state in states)} == {torch.float16}
    assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}
    torch.testing.assert_close(out.float(), exact, atol=5e-3, rtol=1e-2)


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("function", [functional.softmax, functional.log_softmax])
def test_softmax_reads_low_precision_as_cuda_does(function, low):
    scores = torch.randn(4, 9).to(low).requires_grad_()
    exact = scores.detach().double().requires_grad_()
    with cuda_casting(), Names() as names:
        with torch.autocast("cpu", low):
            out = function(scores, -1)
        out.square().sum().backward()
    function(exact, -1).square().sum().backward()
    assert (out.dtype, scores.grad.dtype) == (torch.float32, low)
    casts = [name for name, _ in names.seen if "_to_copy" in name]
    assert len(casts) == (0 if low is torch.float16 else 2)  # C++ takes the fused kernel for float16 only
    torch.testing.assert_close(out.double(), function(exact, -1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.grad, exact.grad.to(low), atol=4e-3, rtol=2 * torch.finfo(low).eps)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_dropout_is_one_kernel_with_the_same_mask_and_draws(dtype):
    values = torch.randn(1000).to(dtype)
    torch.manual_seed(5)
    plain, state = functional.dropout(values, 0.3), torch.get_rng_state()
    torch.manual_seed(5)
    with cuda_casting(), Names() as names:
        ours = functional.dropout(values, 0.3)
    assert [name for name, _ in names.seen] == ["aten.native_dropout.default"]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(ours == 0, plain == 0)
    exact = (values.double() * (plain != 0) / 0.7).to(dtype)
    torch.testing.assert_close(ours, exact, atol=0, rtol=torch.finfo(dtype).eps)


def dispatcher_state():
    touched = {*registered("cpu"), *registered("cuda"), "aten::dropout", "aten::lstm.input", "aten::gru.data"}
    touched |= {f"aten::{name}" for name in ("_softmax", "_log_softmax", "_softmax_backward_data")}
    tables = {name: torch._C._dispatch_dump(name) for name in touched}
    keys = [*AUTOCAST_KEYS, "AutogradCPU", "CPU"]
    lists = {key: sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key)) for key in keys}
    return tables, lists, len(torch.library._impls), list(warnings.filters)


def behaviour():
    values = torch.linspace(-2, 2, 16).reshape(4, 4)
    with torch.autocast("cpu", torch.float16), Names() as names:
        out = (
            functional.layer_norm((values @ values).softmax(1), (4,)).sum()
            + functional.dropout(values.half(), 0.0).sum()
        )
        out = out + functional.binary_cross_entropy(torch.sigmoid(values), values.abs() / 2)
    return names.seen, out.item()


def test_all_registrations_and_cpu_autocasts_behaviour_come_back():
    state, before = dispatcher_state(), behaviour()
    with cuda_casting():
        assert dispatcher_state()[0] != state[0]
        with cuda_casting():
            pass
        assert torch.ones(2, dtype=torch.float16).exp().dtype is torch.float16
        with torch.autocast("cpu", torch.float16):
            assert torch.ones(2, dtype=torch.float16).exp().dtype is torch.float32
    assert dispatcher_state() == state
    assert behaviour() == before


def test_an_exception_removes_the_kernels():
    state = dispatcher_state()
    with pytest.raises(KeyError), cuda_casting(), torch.autocast("cpu", torch.float16):
        raise KeyError
    assert dispatcher_state() == state


def test_a_kernel_that_cannot_be_installed_leaves_nothing(monkeypatch):
    from ampcheck.observe.cuda_on_cpu import emulation

    state = dispatcher_state()
    kernels = {"AutocastCPU": {"aten::mm": len, "aten::no_such_operator": "not callable"}}
    monkeypatch.setattr(emulation, "_kernels", lambda: kernels)
    with pytest.raises(TypeError), cuda_casting():
        pass
    assert dispatcher_state() == state


def test_threads_share_one_installation():
    state, wrong = dispatcher_state(), []

    def work():
        for _ in range(20):
            with cuda_casting(), torch.autocast("cpu", torch.float16):
                out = torch.ones(2, 2).mm(torch.ones(2, 2)).softmax(1)
                if out.dtype is not torch.float32:
                    wrong.append(out.dtype)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert dispatcher_state() == state
