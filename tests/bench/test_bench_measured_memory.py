"""Memory that is measured, against sums by hand; a GPU's allocator is simulated, and counts every storage."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ampcheck.bench.request import Request
from ampcheck.bench.result import AGAIN, Bench, Memory
from ampcheck.bench.running import memory, sizing
from ampcheck.bench.running.arms import Arm
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.predict import predict
from ampcheck.targets.spec import Target

MIB = 2**20
SIDE = 4096  #: a weight of 64 MiB


def linear(optimizer):
    model = nn.Linear(SIDE, SIDE, bias=False)
    loss = lambda model, batch: model(batch).square().mean()  # noqa: E731
    return Target("linear", model, [torch.randn(1, SIDE)], loss, optimizer)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 1e-3)


def adam(model):
    return torch.optim.Adam(model.parameters(), foreach=False)


def settled(target, name="fp32"):
    arm = Arm(target, precision(name))
    with arm.running():
        arm.settle(1)
        arm.train()
    return arm


WEIGHT = SIDE * SIDE * 4
#: Parameters, gradients and Adam's two moments; its update makes two more tensors of a weight's size, a root and
#: that root divided.
BY_HAND = {"sgd": (sgd, 2 * WEIGHT), "adam": (adam, 6 * WEIGHT)}


@pytest.mark.parametrize("name", BY_HAND)
def test_measured_peaks_hold_parameters_gradients_and_state(name):
    optimizer, expected = BY_HAND[name]
    found, how = memory.cpu_peak(settled(linear(optimizer)))
    if found is None:
        pytest.skip(how)
    assert found == pytest.approx(expected, rel=0.01), f"{found / MIB:.1f} MiB"


def test_measured_peaks_hold_the_activations():
    """At the peak, in the sine's backward, live its input, that input's cosine, and their product with the gradient.

    Each is 32 MiB, which the C library gives back when it is freed. It keeps smaller blocks, so that a step's small
    activations still count after they are freed: five of 256 KiB once made 1.2 % of Linear and SGD.
    """
    rows, side = 32768, 256
    loss = lambda model, batch: model(batch).sum()  # noqa: E731
    model = nn.Sequential(nn.Linear(side, side, bias=False), Sine())
    found, how = memory.cpu_peak(settled(Target("sine", model, [torch.randn(rows, side)], loss, sgd)))
    if found is None:
        pytest.skip(how)
    assert found == pytest.approx(3 * rows * side * 4 + side * side * 4, rel=0.01), f"{found / MIB:.1f} MiB"


class Sine(nn.Module):
    def forward(self, x):
        return x.sin()


class Allocator(TorchDispatchMode):
    """A simulated allocator: what is alive, its peak, and what is kept in store until the cache is emptied."""

    def __init__(self, held):
        super().__init__()
        self.now = self.peak = self.reserved = 0
        self.known = weakref.WeakSet()
        for tensor in held:
            self.take(tensor)

    def take(self, tensor):
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.known.add(storage)
            self.now += storage.nbytes()
            self.peak, self.reserved = max(self.peak, self.now), max(self.reserved, self.now)
            weakref.finalize(storage, self.give, storage.nbytes()).atexit = False

    def give(self, size):
        self.now -= size

    def empty(self):
        self.reserved = self.now

    def reset(self, _device):
        self.peak = self.now

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self.take(leaf)
        return out


@pytest.fixture
def simulated(monkeypatch):
    def start(held):
        allocator = Allocator(held)
        for name, stand_in in {
            "empty_cache": allocator.empty, "synchronize": lambda _: None,
            "reset_peak_memory_stats": allocator.reset, "memory_allocated": lambda _: allocator.now,
            "max_memory_allocated": lambda _: allocator.peak, "memory_reserved": lambda _: allocator.reserved,
            "max_memory_reserved": lambda _: allocator.reserved, "memory_stats": lambda _: {},
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, stand_in)
        return allocator

    return start


@pytest.mark.parametrize("others", [0, 6])
@pytest.mark.parametrize("name", BY_HAND)
def test_on_a_gpu_gradients_count_and_other_models_do_not(name, others, simulated):
    """64.1 MiB were measured for 128 of Linear and SGD; with six models beside it 768 MiB were called reserved."""
    optimizer, expected = BY_HAND[name]
    arm = settled(linear(optimizer))
    beside = [torch.empty(WEIGHT // 4) for _ in range(others)]
    allocator = simulated([*arm.held(), *beside, *arm.target.batches, *(p.grad for p in arm.parameters)])
    with allocator:
        allocated, reserved, _ = memory.cuda_peak(arm)
    assert allocated == pytest.approx(expected, rel=0.01)
    assert reserved == pytest.approx(expected, rel=0.01)


#: In low precision: at SGD's peak live the weight, its gradient in half precision and the FP32 gradient cast from it;
#: the weight's own cast is gone with the forward. Adam's peak is its update, where nothing is in half precision.
LOW = {"sgd": 2.5 * WEIGHT, "adam": 6 * WEIGHT}


@pytest.mark.parametrize("name", ["fp16", "amp", "bf16"])
@pytest.mark.parametrize("optimizer", BY_HAND)
def test_peaks_in_low_precision_are_those_of_a_hand_too(optimizer, name, simulated):
    make = BY_HAND[optimizer][0]
    arm = settled(linear(make), name)
    allocator = simulated([*arm.held(), *arm.target.batches, *(p.grad for p in arm.parameters)])
    with allocator:
        allocated, _, _ = memory.cuda_peak(arm)
    assert allocated == pytest.approx(LOW[optimizer], rel=0.01)
    if optimizer == "sgd":  # a prediction is of Adam's form on CUDA, which has other temporaries
        predicted = predict(lambda: linear(make), precision(name)).split
        assert predicted.peak_bytes == pytest.approx(LOW[optimizer], rel=0.01)


@pytest.mark.parametrize(("name", "share"), [("half", 0.5), ("bfloat16", 0.5), ("tf32", 1)])
def test_a_model_that_is_cast_itself_needs_half_of_everything(name, share):
    predicted = predict(lambda: linear(sgd), precision(name)).split
    assert predicted.peak_bytes == pytest.approx(share * 2 * WEIGHT, rel=0.01)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_resnet18_on_a_gpu_needs_what_its_ledger_says(simulated):
    """The ledger of the operations is another witness: it lists every storage by what it is for."""
    import torchvision

    from ampcheck.bench.running.predict import measured_on_cpu

    def make():
        torch.manual_seed(0)
        batch = torch.randn(8, 3, 64, 64), torch.randint(0, 1000, (8,))
        loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
        return Target("resnet18", torchvision.models.resnet18(), [batch], loss, sgd)

    arm = settled(make())
    allocator = simulated([*arm.held(), *arm.target.batches[0], *(p.grad for p in arm.parameters)])
    with allocator, torch.backends.mkldnn.flags(enabled=False):
        allocated, _, _ = memory.cuda_peak(arm)
    assert allocated == pytest.approx(measured_on_cpu(make).peak_bytes, rel=0.01)


def small(_size=None, _seed=0):
    return Target("small", nn.Linear(8, 8), [torch.randn(4, 8)], lambda m, b: m(b).square().mean(), sgd)


def test_memory_is_measured_with_no_other_model_about(monkeypatch):
    models, alive = [], []

    def make(size, seed):
        target = small()
        models.append(weakref.ref(target.model))
        return target

    def used(arm):
        gc.collect()
        alive.append(sum(model() is not None for model in models))
        return Memory(cpu_peak=1)

    monkeypatch.setattr(sizing, "_used", used)
    request = Request(("fp32", "bf16"), ("time", "memory"), budget=0.0)
    Bencher(make, request).run(Bench("small"))
    assert alive == [1, 1]


def test_what_fits_only_alone_is_still_measured(monkeypatch):
    """Two models fit: FP32 takes one place, so that the last of three has to wait until the others are gone."""
    models = []
    step = Arm.train

    def train(arm):
        gc.collect()
        alive = sum(model() is not None for model in models)
        if alive > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(arm)

    def make(size, seed):
        target = small()
        models.append(weakref.ref(target.model))
        return target

    monkeypatch.setattr(Arm, "train", train)
    request = Request(("fp32", "amp", "bf16"), ("time", "memory"), budget=0.0)
    case = Bencher(make, request).run(Bench("small")).cases[0]
    assert [row.status for row in case.rows] == ["ok", "ok", "ok"]
    assert all(row.time is not None for row in case.rows)
    assert [row.precision for row in case.rows if "timed alone" in row.message] == ["bf16"]
    assert case.again is None, AGAIN
