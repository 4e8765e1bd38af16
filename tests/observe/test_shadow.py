"""FP32 beside a low-precision step: the very numbers that a run in FP32 gives, and nothing that the script can see."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampcheck
from ampcheck.fix.verify import comparison
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.execution import run_op
from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.reference.storage import holding, is_sparse, memory_of
from ampcheck.observe.script.comparing import Compared


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(checkpoint(self.inner, x, use_reentrant=False).mean(1))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        out = self.first(x)
        buffer = torch.zeros(*out.shape, dtype=out.dtype)
        buffer[:, ::2] = out[:, ::2]
        buffer.add_(out, alpha=0.5).clamp_(-2, 2).relu_()
        picked = buffer.index_select(1, torch.arange(16).flip(0))
        return self.second(picked.transpose(0, 1).contiguous().t() + buffer.where(buffer.detach() != 0, 0.5))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(32, 16), nn.GRU(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.inner(self.words(x))[0][-1])


class Graph(nn.Module):
    """A graph convolution, twice, by a sparse matrix whose elements no half precision holds."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        weights = torch.rand(4, 4) * (torch.rand(4, 4) > 0.4) + torch.eye(4) / 3
        self.register_buffer("weights", weights)

    def forward(self, x):
        near = self.weights.to_sparse()
        return torch.spmm(near, self.second(torch.spmm(near, self.first(x)).relu()))


class Spectral(nn.Module):
    """A Fourier layer with complex weights, as neural operators have them, and a spectrum of what comes of it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        self.modes = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            modes = torch.fft.rfft(self.first(x).float()) * self.modes
            turned = torch.view_as_complex(x.view(4, 8, 2)) * torch.polar(torch.ones(8), torch.arange(8.0))
            parts = torch.view_as_real(turned * modes[:, :8].conj()).flatten(1)
            power = modes.real.square() + modes.imag.square() + modes.conj().imag
        return self.second(parts + torch.fft.irfft(modes)) + power.sum(1, keepdim=True)


class Vocoder(nn.Module):
    """A wave whose spectrum the loss is made of."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(9, 4)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            wave = self.first(x).float()
            spectrum = torch.stft(wave, 16, 8, window=torch.hann_window(16), return_complex=True)
        return self.second((spectrum.abs() + 1e-2).log().mean(2))


class Clamped(nn.Module):
    """Rare events: 1 - p is 1 in half precision, so that a clamp lets no gradient through, as it does in FP32."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(4, 4)

    def forward(self, x):
        absent = 1.0 - torch.sigmoid(self.first(x) - 9.0)
        rare = (1.0 - absent[:, :4]).clamp(1e-6, 1.0)
        return self.second(rare.log())


MODELS = {
    "clamped": (Clamped, lambda: torch.randn(4, 16)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(2),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(128, 4),
        ),
        lambda: torch.randn(4, 3, 8, 8),
    ),
    "attention": (Attention, lambda: torch.randn(4, 6, 16)),
    "in place": (InPlace, lambda: torch.randn(4, 16)),
    "recurrent": (Recurrent, lambda: torch.randint(0, 32, (5, 4))),
    "sparse": (Graph, lambda: torch.randn(4, 16)),
    "spectral": (Spectral, lambda: torch.randn(4, 16)),
    "vocoder": (Vocoder, lambda: torch.randn(4, 16)),
}


def trained(model, x, dtype, scale=1.0):
    """One step's loss and gradients."""
    torch.manual_seed(7)
    target = torch.arange(4) % 4
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = nn.functional.cross_entropy(model(x), target)
    (loss * scale).backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def watched(model, x, dtype, scale=1.0, run=execute):
    """The same under a recording; also the gradients that FP32 has beside it."""
    recording = Compared(0, run, comparison)
    recording.recorder.adopt(model, "model")
    recording.open()
    try:
        loss, grads = trained(model, x, dtype, scale)
    finally:
        recording.close()
    references = [recording._shadow.of(parameter.grad) for parameter in model.parameters()]
    recording.gradients(recording.recorder.tracker.parameters())
    return loss, grads, references, recording.finish()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_the_twins_gradients_are_those_of_a_run_in_fp32(name, dtype):
    torch.manual_seed(0)
    build, batch = MODELS[name]
    model, x = build(), batch()
    alone = copy.deepcopy(model)
    _, truth = trained(alone, x, None)
    _, low, references, recorded = watched(model, x, dtype)
    rounded = 0
    for expected, reference, grad in zip(truth, references, low, strict=True):
        torch.testing.assert_close(reference, expected, rtol=1e-4, atol=1e-6)
        rounded += not torch.equal(grad, expected)
    assert rounded  # the script itself did compute in low precision
    assert recorded.precision == {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_the_script_sees_nothing_of_it(name, dtype):
    torch.manual_seed(0)
    build, batch = MODELS[name]
    model, x = build(), batch()
    alone = copy.deepcopy(model)
    loss, grads = trained(alone, x, dtype)
    drawn = torch.rand(3)
    seen, recorded, _, _ = watched(
        model, x, dtype, run=run_op
    )  # as a script on a CPU is run: by the CPU's kernels
    assert torch.equal(loss, seen)
    assert torch.equal(drawn, torch.rand(3))
    assert all(torch.equal(a, b) for a, b in zip(grads, recorded, strict=True))
    for (key, before), after in zip(alone.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(before, after), key
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_what_the_script_picks_is_picked_for_both():
    shadow = Shadow(execute)
    values = shadow.run(
        torch.ops.aten._to_copy.default, (torch.tensor([1.0, 1.001]),), {"dtype": torch.bfloat16}
    )
    best = shadow.run(torch.ops.aten.argmax.default, (values,), {})
    kept = shadow.run(torch.ops.aten.index.Tensor, (values, [best]), {})
    assert int(best) == 0  # in bf16 both are 1; FP32 by itself would pick the second
    assert float(shadow.of(kept)) == 1.0


def test_in_fp32_both_records_are_one():
    torch.manual_seed(0)
    build, batch = MODELS["convolutions"]
    _, _, references, recorded = watched(build(), batch(), None)
    assert references == [None] * len(references)
    assert recorded.precision == "fp32"
    assert recorded.low.sites == recorded.beside.reference.sites


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_tensor_is_like_another_with_other_elements(layout):
    dense = torch.eye(4) + torch.ones(4, 4).tril()
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    tensor = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **blocks)
    made = holding(tensor, memory_of(tensor) * 3)
    assert made.layout is tensor.layout
    torch.testing.assert_close(made.to_dense(), 3 * dense)
    assert is_sparse(made)
    assert not is_sparse(dense)
    assert memory_of(dense) is dense


def test_what_overflows_is_finite_beside_it():
    layer = nn.Linear(4, 4, bias=False)
    nn.init.constant_(layer.weight, 200.0)
    recording = Compared(0, execute, comparison)
    recording.recorder.adopt(layer, "layer")
    recording.open()
    with torch.autocast("cpu", torch.float16):
        out = layer(torch.full((2, 4), 100.0))
    recording.close()
    reference = recording._shadow.of(out)
    assert out.isinf().all()
    assert torch.equal(reference, torch.full((2, 4), 80000.0))
    recorded = recording.finish()
    low = {site.op: stats for site, stats in recorded.low.sites.items() if site.op in {"mm", "addmm"}}
    wide = {site.op: stats for site, stats in recorded.beside.reference.sites.items() if site.op in low}
    assert [stats.infs for stats in low.values()] == [8]
    assert [(stats.infs, stats.amax) for stats in wide.values()] == [(0, 80000.0)]


def test_twins_go_with_their_tensors():
    shadow = Shadow(execute)
    held = [
        shadow.run(torch.ops.aten._to_copy.default, (torch.randn(8),), {"dtype": torch.float16})
        for _ in range(5)
    ]
    for _ in range(300):
        shadow.run(torch.ops.aten.mul.Tensor, (held[0], 2.0), {})
    assert len(shadow._references) < 150
    assert all(shadow.of(tensor) is not None for tensor in held)


def test_views_and_writes_through_them_reach_the_twin():
    shadow = Shadow(execute)
    base = shadow.run(torch.ops.aten._to_copy.default, (torch.arange(12.0) / 3,), {"dtype": torch.bfloat16})
    part = base.view(3, 4).t()[1]
    shadow.run(torch.ops.aten.mul_.Tensor, (part, 1 / 3), {})
    expected = torch.arange(12.0) / 3
    expected.view(3, 4).t()[1].mul_(1 / 3)
    assert torch.equal(shadow.of(base), expected)
    assert torch.equal(shadow.of(part), expected.view(3, 4).t()[1])


class Tagged(torch.Tensor):
    """A subclass that hears of functions, as metadata carriers do; in memory it is a tensor as any other."""

    heard = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.heard += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def tagged(watched, kind):
    """Train with inputs of a kind; return the report, what the subclass heard and the parameters."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    Tagged.heard = 0
    with ampcheck.watch() if watched else nullcontext() as watching:
        for _ in range(3):
            x, y = torch.randn(8, 8).as_subclass(kind), torch.randint(0, 4, (8,))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x).as_subclass(torch.Tensor).float(), y)
            scaler.scale(loss).backward()
            assert all(type(parameter.grad) is torch.Tensor for parameter in model.parameters())
            scaler.step(optimizer)
            scaler.update()
    heard = Tagged.heard
    return watching.report() if watched else None, heard, [p.tolist() for p in model.parameters()]


def test_a_subclass_that_hears_of_functions_hears_nothing_of_ours_and_is_audited_as_any_tensor():
    report, heard, parameters = tagged(True, Tagged)
    assert (heard, parameters) == tagged(False, Tagged)[1:]
    assert heard
    plain, _, same = tagged(True, torch.Tensor)
    assert parameters == same
    assert report.outcomes == plain.outcomes
    assert report.verdict.word == plain.verdict.word


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_one_memory_are_what_fp32_makes_of_them(seed):
    """Writes to any parts in any order; the witness makes the same ones in FP32."""
    random = torch.Generator().manual_seed(seed)
    low = torch.randn(64, generator=random).half()
    wide, shadow, aten = low.float(), Shadow(run_op), torch.ops.aten
    for _ in range(30):
        start, size = torch.randint(0, 28, (2,), generator=random).tolist()
        step = 1 + size % 2
        part, witness = low[start : start + size : step], wide[start : start + size : step]
        value = torch.randn(len(witness), generator=random)
        shadow.run(aten.mul_.Tensor, (part, 0.7), {})
        shadow.run(aten.add_.Tensor, (part, value), {})
        witness.mul_(0.7).add_(value)
    assert torch.equal(shadow.of(low), wide)
    assert not torch.equal(low.float(), wide)


@pytest.mark.parametrize("partly", [False, True])
def test_complex_numbers_and_their_parts_are_one_memory(partly):
    shadow, aten = Shadow(run_op), torch.ops.aten
    low = torch.randn(16, dtype=torch.complex64)
    wide = low * 3 if not partly else low.clone()
    if partly:  # only some of the memory was used when it is seen otherwise
        factor = shadow.run(aten._to_copy.default, (torch.full((), 1 / 3),), {"dtype": torch.bfloat16})
        shadow.run(aten.mul_.Tensor, (low[4:6], factor), {})
        wide[4:6] *= 1 / 3
    else:
        shadow.keep(low, wide)
    seen = {
        "parts": torch.view_as_real(low),
        "real": low.real,
        "conjugate": low.conj()[3:],
        "negative": low.conj().imag,
        "again": torch.view_as_complex(torch.view_as_real(low).flip(0)),
    }
    truth = {
        "parts": torch.view_as_real(wide),
        "real": wide.real,
        "conjugate": wide.conj()[3:],
        "negative": wide.conj().imag,
    }
    for name, expected in truth.items():
        torch.testing.assert_close(shadow.of(seen[name]), expected)
        torch.testing.assert_close(shadow.of(low), wide)
    assert shadow.of(seen["again"]) is None  # of another memory
    shadow.run(aten.mul_.Tensor, (low.imag, 2.0), {})
    wide.imag.mul_(2.0)
    torch.testing.assert_close(shadow.of(low), wide)


def test_of_a_large_memory_only_what_is_used_is_filled_in():
    low, shadow = torch.zeros(10_000, dtype=torch.bfloat16), Shadow(run_op)
    for start in (500, 400, 700):
        shadow.run(torch.ops.aten.add_.Tensor, (low[start : start + 10], 1 / 3), {})
    held = shadow._beside(low)
    assert held.known == range(400, 710)
    assert shadow.of(low[500:510]).tolist() == pytest.approx([1 / 3] * 10, rel=1e-6)
    assert held.known == range(400, 710)
    assert shadow.of(low).sum().item() == pytest.approx(10.0)
    assert held.known == range(10_000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_the_largest_number_of_half_precision_limits_is_not_limited_in_fp32(dtype):
    """A script asks torch.finfo of the dtype that it holds: in FP32 it would be given another limit."""
    limit, aten = torch.finfo(dtype).max, torch.ops.aten
    shadow, low, wide = Shadow(run_op), torch.tensor([2.0, 3.0], dtype=dtype), torch.tensor([2.0, 1e38])
    shadow.keep(low, wide)
    for func, args in (
        (aten.clamp.default, (-limit, limit)),
        (aten.clamp_max.default, (limit,)),
        (aten.hardtanh.default, (-limit, limit)),
    ):
        assert torch.equal(shadow.of(shadow.run(func, (low, *args), {})), wide.clamp(max=torch.finfo().max))
    other = shadow.run(aten.clamp.default, (low, 0.0, 2.5), {})
    assert torch.equal(shadow.of(other), wide.clamp(0.0, 2.5))


@pytest.mark.parametrize("limit", [65504.0, 65503.0, 65000, 64504.0, 64000])
def test_a_guard_a_little_below_the_largest_number_of_float16_is_none_in_fp32(limit):
    """T5's is 1000 below it."""
    shadow, aten, wide = Shadow(run_op), torch.ops.aten, torch.tensor([-1e6, 7.0, 59999.0, 1e5])
    low = wide.clone()
    shadow.keep(low, wide)
    assert shadow.of(shadow.run(aten.clamp.default, (low, -limit, limit), {})).equal(wide)


@pytest.mark.parametrize("limit", [60000.0, 63999.0, 70000.0, 1.0])
def test_other_limits_hold_in_fp32_as_well(limit):
    shadow, aten, wide = Shadow(run_op), torch.ops.aten, torch.tensor([-1e6, 7.0, 59999.0, 1e5])
    low = wide.clone()
    shadow.keep(low, wide)
    assert shadow.of(shadow.run(aten.clamp.default, (low, -limit, limit), {})).equal(
        wide.clamp(-limit, limit)
    )


def test_a_limit_of_whole_numbers_stays():
    shadow, ids = Shadow(run_op), torch.tensor([3, 70000])
    assert shadow.run(torch.ops.aten.clamp.default, (ids, 0, 65000), {}).tolist() == [3, 65000]
    assert shadow.of(ids) is None
