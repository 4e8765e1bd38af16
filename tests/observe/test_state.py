"""A snapshot puts everything back bit for bit, and several steps follow a plain FP32 loop."""

import copy
import random
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from witness import bits, model_bits, random_bits, seed

from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.step import Step, Widened
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.settings import Settings

PAYLOADS = torch.tensor(
    [0x7FC00001, 0x7F800001, -0x800000 + 5, -0x80000000, 0x00000001, 0x7F800000], dtype=torch.int64
).to(torch.int32)


def strange() -> torch.Tensor:
    """Return NaNs with payloads, a negative zero, a subnormal and an infinity."""
    return PAYLOADS.view(torch.float32).clone()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("strange", strange())
        self.register_buffer("frozen", torch.ones(3))
        self.plain = torch.zeros(4)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
def test_bits_come_back(dtype):
    model = Net()
    with torch.no_grad():
        model.frozen = torch.zeros(6, dtype=dtype).view(torch.uint8).random_(0, 256).view(dtype)
    expected, plain = model_bits(model), bits(model.plain)
    snapshot = Snapshot(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), model.strange, model.plain, model.frozen):
            tensor.fill_(7)
    snapshot.restore()
    assert (model_bits(model), bits(model.plain)) == (expected, plain)
    assert torch.equal(model.strange.view(torch.int32), PAYLOADS)


def test_signed_zeros_and_payloads_survive_a_whole_audit():
    model, batch = Net(), torch.randn(4, 6)
    expected = model_bits(model)
    audit(Target("x", model, [batch], lambda m, b: m.bn(m.fc(b)).square().mean()), Settings(verify=False))
    assert model_bits(model) == expected


def changed(model: Any) -> None:
    """Do everything to a model that a forward may."""
    model.strange = torch.zeros(2)
    model.fc.weight.data = torch.zeros(1)
    model.fc.bias = nn.Parameter(torch.zeros(6))
    model.new = 5
    model.register_buffer("extra", torch.ones(1))
    del model.plain
    model.frozen.resize_(1)
    model.bn.num_batches_tracked += 1
    model.bn.running_mean.mul_(model.fc.bias.sum())


def test_rebound_buffers_attributes_and_storages_come_back():
    model = Net()
    weight, bias, strange_, frozen = model.fc.weight, model.fc.bias, model.strange, model.frozen
    expected, names, keys = model_bits(model), list(model.state_dict()), list(model.__dict__)
    snapshot = Snapshot(model)
    changed(model)
    snapshot.restore()
    assert model.fc.weight is weight
    assert model.fc.bias is bias
    assert model.strange is strange_
    assert model.frozen is frozen
    assert list(model.state_dict()) == names
    assert list(model.__dict__) == keys
    assert model_bits(model) == expected
    assert not model.bn.running_mean.requires_grad
    assert model.bn.running_mean.grad_fn is None


def test_containers_and_plain_objects_come_back():
    model = Net()
    first = torch.zeros(2)
    model.queue, model.ring = [first], deque([1, 2], maxlen=2)
    model.memo = OrderedDict(a={"deep": [first, {"x": 1}]}, b=())
    model.cache = SimpleNamespace(keys=[first], count=0)
    model.seen = {1}
    expected = copy.deepcopy((model.queue, model.ring, model.memo, model.cache, model.seen))
    snapshot = Snapshot(model)
    model.queue.append(torch.ones(1))
    first.add_(1.0)
    model.ring.append(9)
    model.memo["a"]["deep"][1]["x"] = 2
    model.memo["a"]["deep"].clear()
    model.memo["c"] = 0
    model.cache.count += 1
    model.cache.keys = []
    model.cache.more = True
    model.seen |= {2, 3}
    snapshot.restore()
    assert model.queue[0] is first
    assert str((model.queue, model.ring, model.memo, model.cache, model.seen)) == str(expected)


def test_a_batch_comes_back_however_it_is_nested():
    batch = {"x": torch.arange(4.0), "more": [{"y": torch.ones(2)}], "size": 3}
    expected = copy.deepcopy(batch)
    snapshot = Snapshot(nn.Identity(), batch)
    batch["x"].mul_(2)
    batch["more"][0]["y"] = torch.zeros(1)
    batch["more"].append(5)
    del batch["size"]
    snapshot.restore()
    assert str(batch) == str(expected)


def test_every_generator_comes_back():
    model = Net()
    model.own, model.numbers, model.dice = (
        torch.Generator().manual_seed(3),
        np.random.default_rng(3),
        random.Random(3),
    )
    snapshot = Snapshot(model)

    def draw() -> Any:
        torch_, numpy_ = torch.rand(3, generator=model.own).tolist(), model.numbers.random(3).tolist()
        return torch_, numpy_, model.dice.random(), torch.rand(2).tolist(), random.random(), np.random.rand()  # noqa: NPY002

    first = draw()
    snapshot.restore()
    assert draw() == first


def test_modules_held_by_the_loss_come_back():
    model, criterion = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return criterion(net(batch)).square().mean() + net.weight.sum()

    expected = model_bits(criterion)
    audit(Target("x", model, [torch.randn(3, 4)], loss), Settings(verify=False, steps=2))
    assert {k: v for k, v in model_bits(criterion).items() if "grad" not in k} == {
        k: v for k, v in expected.items() if "grad" not in k
    }


def test_shared_memory_and_views_stay_shared():
    model = nn.Linear(4, 4)
    model.view = model.weight.detach()[:2]
    snapshot = Snapshot(model)
    with torch.no_grad():
        model.weight.fill_(0)
    snapshot.restore()
    model.weight.data[0, 0] = 42.0
    assert model.view[0, 0] == 42.0


def test_a_snapshot_that_changes_nothing_touches_nothing():
    model = Net()
    snapshot = Snapshot(model)
    pointers = [tensor.data_ptr() for tensor in model.state_dict().values()]
    snapshot.restore()
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == pointers


def test_widening_holds_halves_in_float32_and_gives_them_back():
    model = Net().half()
    model.strange = torch.arange(4.0).half()  # the conversion itself makes every NaN a quiet one
    batch = {"x": torch.randn(2, 6).bfloat16()}
    expected, pointers = model_bits(model), [p.data_ptr() for p in model.parameters()]
    widened = Widened(model, batch)
    assert {p.dtype for p in model.parameters()} == {batch["x"].dtype} == {torch.float32}
    widened.narrow()
    assert model_bits(model) == expected
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert batch["x"].dtype is torch.bfloat16


def test_the_reference_of_a_half_model_is_float32():
    torch.manual_seed(0)
    model, batch = nn.Linear(6, 3).half(), torch.randn(4, 6).half()
    exact = F.linear(batch.double(), model.weight.detach().double(), model.bias.detach().double())
    found = audit(Target("x", model, [batch], lambda m, b: m(b).square().mean()), Settings(verify=False))
    (stats,) = (s for site, s in found.reference.sites.items() if site.op == "addmm")
    assert stats.amax == pytest.approx(float(exact.abs().max()), rel=1e-6)
    assert found.reference.steps[0].loss == pytest.approx(float(exact.square().mean()), rel=1e-6)


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.register_buffer("ema", torch.zeros(2))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.fc2(F.dropout(self.bn(self.fc1(x)), 0.5)) * self.calls + torch.randn(2) * random.random()
        self.ema = self.ema * 0.9 + y.detach().float().mean(0) * float(np.random.rand())  # noqa: NPY002
        return y


def trained(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def decay(model: Trained) -> None:
    with torch.no_grad():
        model.fc1.weight.mul_(0.99)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("optimizer", [None, lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)])
def test_several_steps_follow_a_plain_float32_loop(precision, optimizer):
    torch.manual_seed(0)
    first, batches = Trained(), [torch.randn(8, 6), torch.randn(8, 6)]
    second = copy.deepcopy(first)
    seed()
    updates = torch.optim.AdamW(second.parameters()) if optimizer is None else optimizer(second)
    plain = []
    for step in range(4):
        loss = trained(second, batches[step % 2])
        plain.append((float(loss.detach()), bits(second.ema), second.calls))
        loss.backward()
        updates.step()
        updates.zero_grad()
        decay(second)
    seed()
    kept, state = model_bits(first), random_bits()
    found = audit(
        Target("x", first, batches, trained, optimizer, decay), Settings(precision, steps=4, verify=False)
    )
    assert [step.loss for step in found.reference.steps] == [loss for loss, _, _ in plain]
    low = [step.loss for step in found.low.steps]
    assert low == pytest.approx([loss for loss, _, _ in plain], rel=0.05)
    assert low != [loss for loss, _, _ in plain]
    assert (model_bits(first), random_bits(), first.calls) == (kept, state, 0)


def test_the_device_is_that_of_the_first_parameter():
    assert Step(nn.Identity(), None, trained).device == torch.device("cpu")
    with torch.device("meta"):
        assert Step(nn.Linear(1, 1), None, trained).device == torch.device("meta")


def test_gradients_come_back_after_a_cast_of_the_model():
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    held = {name: (one.grad, one.grad.clone()) for name, one in model.named_parameters()}
    before = Snapshot(model, [])
    model.half()  # which casts gradients where they are
    before.restore()
    for name, parameter in model.named_parameters():
        same, numbers = held[name]
        assert parameter.grad is same
        assert (parameter.dtype, same.dtype) == (torch.float32, torch.float32)
        assert same.equal(numbers)
