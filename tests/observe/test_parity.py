"""The CPU policy on whole models: the operators, dtypes and casts of CUDA's own kernels on fake tensors.

The full table, with both dtypes for every model, is `reports/parity.md`; `python tests/studies/parity.py` makes it.
"""

import importlib.util

import pytest
import torch
from parity import CAN_DIFFERENTIATE, compare, trace, trace_real
from parity_engine import backward
from parity_models import CASES
from torch import nn
from witness import Names

#: Each has operators, or dtypes of an operator, that none of the others has.
CHOSEN = (
    "torchvision:mobilenet_v3_small", "torchvision:convnext_tiny", "torchvision:swin_t",
    "torchvision:lraspp_mobilenet_v3_large", "torchvision:retinanet_resnet50_fpn",
    "timm:mobilevit_xxs", "timm:nf_resnet26", "timm:ghostnet_100",
    "transformers:bert", "transformers:gpt2", "transformers:llama", "transformers:t5",
    "transformers:segformer",
    "transformers:whisper", "transformers:deberta-v2",
)  # fmt: skip
REAL = ("torchvision:resnet18", "timm:convnext_atto", "transformers:bert", "transformers:gpt2")
#: A convolution's kernel and a few casts differ between the two dtypes; the rest is the same list of operators.
BOTH_DTYPES = frozenset(
    {
        "torchvision:resnet18",
        "transformers:bert",
        "transformers:gpt2",
        "transformers:t5",
        "transformers:deberta-v2",
    }
)


def run(case, dtype):
    library = case.name.partition(":")[0]
    missing = pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"needs {library}")
    return pytest.param(case, dtype, id=f"{case.name}-{str(dtype)[6:]}", marks=missing)


def runs(names, dtypes_of):
    return [run(case, dtype) for case in CASES if case.name in names for dtype in dtypes_of(case.name)]


def dtypes_in_ci(name):
    return (torch.float16, torch.bfloat16) if name in BOTH_DTYPES else (torch.float16,)


pytestmark = pytest.mark.filterwarnings("ignore")  # of the models' own libraries


def test_the_zoo_is_wide_enough():
    count = {
        library: sum(case.name.startswith(library) for case in CASES)
        for library in ("torchvision", "timm", "transformers")
    }
    assert count["torchvision"] >= 20
    assert count["timm"] >= 10
    assert count["transformers"] >= 10
    assert set(CHOSEN) | set(REAL) <= {case.name for case in CASES}


@pytest.mark.parametrize(("case", "dtype"), runs(CHOSEN, dtypes_in_ci))
def test_operators_dtypes_and_casts_are_cudas(case, dtype):
    result = compare(trace(case, dtype, "cuda"), trace(case, dtype, "cpu"))
    assert result.casts > 0
    assert result.same_casts
    assert [str(difference) for difference in result.differences if not difference.allowed] == []


@pytest.mark.parametrize(("case", "dtype"), runs(REAL, dtypes_in_ci))
def test_real_tensors_take_the_same_way(case, dtype):
    result = compare(trace(case, dtype, "cuda"), trace_real(case, dtype))
    assert result.same_casts
    assert [str(difference) for difference in result.differences if not difference.allowed] == []


GRU_CELL = pytest.param(
    nn.GRUCell(8, 4),
    marks=pytest.mark.skipif(
        not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_thnn_fused_gru_cell", "Meta"),
        reason="before 2.15 torch cannot run CUDA's cell on fake tensors",
    ),
)


@pytest.mark.skipif(not CAN_DIFFERENTIATE, reason="fake CUDA tensors need a CUDA build to require gradients")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "layer",
    [nn.RMSNorm(8), nn.LSTMCell(8, 4), GRU_CELL, nn.RNNCell(8, 4)],
    ids=lambda m: type(m).__name__,
)
def test_layers_with_a_kernel_of_their_own_on_cuda_have_its_dtypes_outside(layer, dtype):
    from parity import cuda_autocast, emulated_autocast, fake
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = []
    for device, autocast in (("cuda", cuda_autocast), ("cpu", emulated_autocast)):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            import copy

            module = copy.deepcopy(layer)
            values = fake(module, torch.randn(2, 8), mode, device).requires_grad_()
            with autocast(dtype):
                out = module(values)
            outs = out if isinstance(out, tuple) else (out,)
            seen.append([item.dtype for item in outs])
    assert seen[0] == seen[1]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_planted_difference_is_found():
    case = next(case for case in CASES if case.name == "transformers:gpt2")
    cpu = trace(case, torch.float16, "cpu")
    at = next(at for at, event in enumerate(cpu) if event.is_cast)
    less = compare(cpu, [*cpu[:at], *cpu[at + 1 :]])
    other = compare(cpu, [*cpu[:at], cpu[at]._replace(outputs=("bfloat16",)), *cpu[at + 1 :]])
    assert not less.equal
    assert not other.equal
    assert compare(cpu, cpu).equal


@pytest.mark.parametrize("name", REAL)
def test_the_backward_of_the_comparison_is_torchs_own(name):
    case = next(case for case in CASES if case.name == name)
    if importlib.util.find_spec(name.partition(":")[0]) is None:
        pytest.skip("its library is missing")
    torch.manual_seed(0)
    module, batch, loss = case.build()
    module.eval()
    with Names() as theirs:
        loss(module, batch).backward()
    with Names() as ours:
        backward(loss(module, batch))
    # Storing a gradient is left out of it: an alias, or a copy into the parameter's memory layout.
    stored = {"aten.detach.default", "aten.new_empty_strided.default", "aten.copy_.default"}
    assert [op for op in ours.seen if op not in stored] == [op for op in theirs.seen if op not in stored]
