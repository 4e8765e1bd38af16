"""Emulated recipes: where they act, what they leave, and torchao's own emulation bit for bit."""

import copy
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.observe.fp8.casts import rounded
from ampcheck.observe.fp8.emulate import Emulation, Kept, Product, emulated
from ampcheck.observe.fp8.owners import Layer
from ampcheck.values.recipes import recipe

AO = {"ao-tensorwise": "tensorwise", "ao-rowwise": "rowwise", "ao-rowwise-gw-hp": "rowwise_with_gw_hp"}


def net(bias):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96, bias=bias), nn.ReLU(), nn.Linear(96, 48, bias=bias))


def low_gradients(model, x, name, **kept):
    run = Emulation(recipe(name), Kept(**kept))
    with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    y.float().square().sum().backward()
    return run, y.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(AO))
def test_gradients_are_torchaos_bit_for_bit(name, dtype, bias):
    """Twelve settings: outputs and every gradient entry."""
    float8 = import_module("torchao.float8")
    config = import_module("torchao.float8.config")
    model = net(bias).to(dtype)
    x = (torch.randn(80, 64) * torch.randn(80, 1).exp()).to(dtype)
    theirs = copy.deepcopy(model)
    chosen = config.Float8LinearConfig.from_recipe_name(AO[name])
    chosen = type(chosen)(**{**chosen.__dict__, "emulate": True})
    float8.convert_to_float8_training(theirs, config=chosen)
    y = theirs(x)
    y.float().square().sum().backward()
    if dtype is torch.bfloat16:
        _, mine, grads = low_gradients(model, x, name)
    else:  # there is no autocast to FP32: the same products by hand
        run = Emulation(recipe(name))
        first, _, last = model
        hidden = Product.apply(x, first.weight, run, Layer("0", "weight"))
        hidden = F.relu(hidden if first.bias is None else hidden + first.bias)
        mine = Product.apply(hidden, last.weight, run, Layer("2", "weight"))
        mine = mine if last.bias is None else mine + last.bias
        mine.square().sum().backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
    assert torch.equal(mine.detach(), y.detach())
    for n, p in theirs.named_parameters():
        assert torch.equal(grads[n], p.grad), n


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mxfp8_is_torchaos_mx_mm(dtype):
    mx = import_module("torchao.prototype.moe_training.mxfp8_linear")
    configs = import_module("torchao.prototype.mx_formats.config")
    from torchao.quantization.quantize_.common import KernelPreference

    torch.manual_seed(0)
    x, w = torch.randn(64, 96, dtype=dtype), torch.randn(128, 96, dtype=dtype)
    pairs = [[t.clone().requires_grad_() for t in (x, w)] for _ in range(2)]
    e4 = torch.float8_e4m3fn
    theirs = mx.mx_mm.apply(
        *pairs[0],
        e4,
        e4,
        e4,
        32,
        KernelPreference.EMULATED,
        configs.MXFP8Dim0CastKernelChoice.TORCH
        if hasattr(configs, "MXFP8Dim0CastKernelChoice")
        else mx.MXFP8Dim0CastKernelChoice.TORCH,
        configs.MXFP8Dim1CastKernelChoice.TORCH if hasattr(configs, "MXFP8Dim1CastKernelChoice") else None,
        configs.ScaleCalculationMode.RCEIL,
        False,
    )
    mine = Product.apply(*pairs[1], Emulation(recipe("ao-mxfp8")), Layer("", "weight"))
    grad = torch.randn_like(mine)
    theirs.backward(grad)
    mine.backward(grad)
    assert torch.equal(mine, theirs)
    for a, b in zip(*pairs, strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("name", ["te-current", "ao-tensorwise", "ao-rowwise"])
def test_products_are_those_of_torchs_own_scaled_kernel(name):
    """`torch._scaled_mm` multiplies the bytes themselves; only the last bit of a bf16 result may differ."""
    torch.manual_seed(0)
    x, w = (torch.randn(rows, 64) * torch.randn(rows, 1).exp() for rows in (80, 96))
    casts = recipe(name).casts
    a, b = (rounded(t, casts["fprop", kind]) for t, kind in ((x, "input"), (w, "weight")))
    low = [one.held.to(torch.float8_e4m3fn) for one in (a, b)]
    scales = {"scale_a": (1 / a.scale).reshape(-1, 1), "scale_b": (1 / b.scale).reshape(1, -1)}
    if scales["scale_a"].numel() == 1:
        scales = {kind: scale.reshape(()) for kind, scale in scales.items()}
    theirs = torch._scaled_mm(low[0], low[1].t(), **scales, out_dtype=torch.bfloat16)
    mine = Product.apply(x, w, Emulation(recipe(name)), Layer("", "weight")).bfloat16()
    assert torch.allclose(mine.float(), theirs.float(), rtol=2.0**-7, atol=1e-4 * float(mine.abs().max()))
    assert float((mine == theirs).double().mean()) > 0.99


class Experts(nn.Module):
    """Every way to multiply with a weight."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 32)
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
        self.w = nn.Parameter(torch.randn(4, 32, 32) * 0.1)
        self.heads = nn.Parameter(torch.randn(32, 2, 16) * 0.1)
        self.frozen = nn.Parameter(torch.randn(32, 32) * 0.1, requires_grad=False)
        self.rnn = nn.GRU(32, 32, batch_first=True)

    def forward(self, i):
        x = self.emb(i)
        x = x + self.attn(x, x, x, need_weights=False)[0]
        x = x + torch.einsum("bsd,dhk->bshk", x, self.heads).flatten(-2)
        x = x + x @ self.frozen
        x = x + torch.bmm(x.reshape(4, -1, 32), self.w).reshape(x.shape)
        x = x + self.rnn(x)[0]
        scores = x @ x.transpose(-1, -2)
        x = x + scores.softmax(-1) @ x
        return F.linear(x, self.emb.weight)


def test_it_acts_wherever_a_weight_is_multiplied():
    torch.manual_seed(0)
    run, _, _ = (None, None, None)
    model = Experts()
    i = torch.randint(0, 64, (4, 16))
    run = Emulation(recipe("te-current"))
    with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(i).float().square().mean()
    loss.backward()
    met = {(layer.module, layer.parameter) for layer in run.layers}
    assert met == {
        ("attn", "in_proj_weight"),
        ("attn.out_proj", "weight"),
        ("", "heads"),
        ("", "frozen"),
        ("", "w"),
        ("emb", "weight"),
    }


def test_kept_layers_are_bit_for_bit_bf16():
    x = torch.randn(32, 64)
    plain = low_gradients(net(True), x, "te-current", modules=frozenset({"0", "2"}))
    again = low_gradients(net(True), x, "te-mxfp8", only=frozenset())
    assert torch.equal(plain[1], again[1])
    for name, grad in plain[2].items():
        assert torch.equal(grad, again[2][name])
    first = low_gradients(net(True), x, "te-current", modules=frozenset({"2"}))
    assert not torch.equal(first[1], plain[1])


def test_single_gemms_stay_in_bf16():
    """With dgrad and wgrad kept, the forward alone is rounded; the last layer's bias does not see any of it."""
    x = torch.randn(32, 64)
    whole = low_gradients(net(False), x, "te-current")
    kept = low_gradients(net(False), x, "te-current", gemms=frozenset({"dgrad", "wgrad"}))
    assert torch.equal(whole[1], kept[1])
    assert not torch.equal(whole[2]["2.weight"], kept[2]["2.weight"])


def test_everything_is_put_back():
    model, x = net(True), torch.randn(32, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(x)
    state = torch.get_rng_state()
    low_gradients(model, x, "te-nvfp4")
    assert torch.equal(torch.get_rng_state(), state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), before)
    with pytest.raises(RuntimeError), emulated(model, "cpu", Emulation(recipe("te-block"))):
        raise RuntimeError
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), before)


def test_delayed_scales_come_from_earlier_steps():
    """The scale of a step is 448 over the largest magnitude of the steps before, which saturates a new spike."""
    model = nn.Linear(16, 16, bias=False)
    run = Emulation(recipe("te-delayed:most_recent"))
    for size in (1.0, 8.0, 2.0):
        x = torch.full((16, 16), size)
        with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
            model(x).float().sum().backward()
        run.memory.end_step()
        slot = next(slot for (_, operand), slot in run.memory.slots.items() if operand == "input")
        assert slot.scale.item() == 448.0 / size
        assert slot.past[-1].item() == size
    longest = Emulation(recipe("te-delayed:history=2"))
    for size in (8.0, 1.0, 1.0):
        with emulated(model, "cpu", longest), torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.full((16, 16), size)).float().sum().backward()
        longest.memory.end_step()
    slot = next(slot for (_, operand), slot in longest.memory.slots.items() if operand == "input")
    assert slot.scale.item() == 448.0


def test_a_cold_start_comes_back_one_layer_a_step():
    """Gradients below 2**-17 are underflowed at the first scale of 1; the layer below then sees nothing to scale by."""
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(4)))
    run = Emulation(recipe("te-delayed"))
    moved = []
    for _ in range(6):
        with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
            (model(torch.randn(16, 16)).float().sum() * 2.0**-24).backward()
        run.memory.end_step()
        moved.append(
            sum(
                bool(slot.past) for (_, operand), slot in run.memory.slots.items() if operand == "grad_output"
            )
        )
    assert moved[:4] == [1, 2, 3, 4]


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = net(True), nn.Linear(48, 48)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return self.head(checkpoint(self.inner, x, use_reentrant=False))


def test_recomputed_layers_are_rounded_alike():
    """Under delayed scaling, too: the second pass of a step has the scales of the first."""
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(32, 64)
    found = []
    for tried in (model, nn.Sequential(*model.inner, model.head)):
        run = Emulation(recipe("te-delayed"))
        for _ in range(3):
            model.zero_grad()
            with emulated(tried, "cpu", run):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = tried(x)
                y.float().square().sum().backward()
            run.memory.end_step()
        assert len(run.layers) == 3
        found.append([parameter.grad.clone() for parameter in tried.parameters()])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_vmap_is_one_product_of_the_layer():
    model, x = nn.Linear(16, 16, bias=False), torch.randn(4, 8, 16)
    ways = []
    for way in (model, torch.vmap(model)):
        run = Emulation(recipe("te-current"))
        with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
            ways.append(way(x))
        assert len(run.layers) == 1 or sum(run.left.values())
    assert torch.equal(*ways)


def test_a_gradient_of_a_gradient_runs():
    model, run = net(True), Emulation(recipe("te-mxfp8"))
    x = torch.randn(16, 64, requires_grad=True)
    with emulated(model, "cpu", run), torch.autocast("cpu", dtype=torch.bfloat16):
        (slope,) = torch.autograd.grad(model(x).float().sum(), x, create_graph=True)
        slope.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for n, p in model.named_parameters() if n.endswith("weight"))
