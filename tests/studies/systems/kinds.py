"""Training in one process, in ways that PyTorch offers: `python kinds.py NAME`."""

import functools
import multiprocessing
import sys
import threading

import torch
from systems_common import batches, digest, loss_of, net, parameters, scaler, train
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def _trained(model, forward=None, extra=(), **options):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(model, optimizer, scaler(), forward=forward, **options)
    digest([*losses, *extra], parameters(model))


def data_parallel():
    model = nn.DataParallel(net())
    _trained(model)


def checkpointing():
    model = net()
    _trained(model, lambda x: model[4](checkpoint(model[:4], x, use_reentrant=False)))


def reentrant_checkpointing():
    model = net()
    _trained(model, lambda x: model[4](checkpoint(model[:4], x.requires_grad_(), use_reentrant=True)))


def selective_checkpointing():
    kept = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}

    def policy(_context, op, *_args, **_kwargs):
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    model = net()
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    _trained(model, lambda x: model[4](checkpoint(model[:4], x, use_reentrant=False, context_fn=contexts)))


def compiled():
    model = net()
    _trained(model, torch.compile(model, backend="eager"))


def flop_counter():
    from torch.utils.flop_counter import FlopCounterMode

    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    counts = []
    for batch in batches():
        with FlopCounterMode(display=False) as counter:
            train(model, optimizer, scaler(), data=[batch])
        counts.append(counter.get_total_flops())
    digest(counts, parameters(model))


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class CountingCalls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def dispatch_modes():
    """Modes entered outside of the step, within it, and left in the middle of it."""
    model, inner, calls = net(), Counting(), CountingCalls()

    def forward(x):
        with inner, calls:
            hidden = model[:2](x)
        return model[2:](hidden)

    outer = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with outer:
        losses = train(model, optimizer, scaler(), forward=forward)
    print(len(outer.seen), len(inner.seen), len(calls.seen))
    digest([*losses, len(outer.seen), len(inner.seen), len(calls.seen)], parameters(model))


def transforms():
    """Gradients for each sample, and a directional derivative, by torch.func."""
    model = net()
    model[3].p = 0.0
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(held, x, y):
        return loss_of(torch.func.functional_call(model, held, (x[None],)), y[None])

    def forward(x):
        y = torch.zeros(len(x), dtype=torch.long)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        _, along = torch.func.jvp(lambda v: model(v).float(), (x,), (torch.ones_like(x),))
        return model(x).float() + 1e-3 * each["4.bias"].mean(0) + 1e-3 * along.detach()

    _trained(model, forward)


class Doubled(torch.autograd.Function):
    calls = 0

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float16)
    def forward(ctx, x):
        Doubled.calls += 1
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        Doubled.calls += 1
        return grad * 2


def custom_functions():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(model, optimizer, scaler(), forward=lambda x: Doubled.apply(model(x)))
    digest([*losses, Doubled.calls], parameters(model))


_RAN = []


def custom_operators():
    """An operator of the program's own that counts how often it runs."""

    @torch.library.custom_op("systems::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        _RAN.append(1)
        return x * 2

    scaled.register_autograd(lambda _ctx, grad: grad * 2)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(model, optimizer, scaler(), forward=lambda x: scaled(model(x)))
    digest([*losses, len(_RAN)], parameters(model))


class Labelled(torch.Tensor):
    """A wrapper that takes operations apart and counts them."""

    ran = 0

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, requires_grad=inside.requires_grad
        )

    def __init__(self, inside):
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.ran += 1
        bare = torch.utils._pytree.tree_map_only(cls, lambda held: held.inside, (args, kwargs or {}))
        out = func(*bare[0], **bare[1])
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, out)


def wrapper_subclass():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def forward(x):
        out = model(Labelled(x))
        return out.inside if isinstance(out, Labelled) else out

    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        hidden = Labelled(x) * 2
        loss = loss_of(model(hidden.inside), y) + 1e-3 * model[0].weight.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest([*losses, Labelled.ran], parameters(model))


class Tagged(torch.Tensor):
    """A subclass that hears of calls, as metadata carriers do."""

    heard = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.heard += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def function_subclass():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(
        model, optimizer, scaler(), forward=lambda x: model(x.as_subclass(Tagged)).as_subclass(torch.Tensor)
    )
    digest([*losses, Tagged.heard], parameters(model))


def nested_tensors():
    model = net()

    def forward(x):
        ragged = torch.nested.nested_tensor([x[:3], x[3:]], layout=torch.jagged)
        return model[4](torch.cat(model[:3](ragged).unbind()))

    _trained(model, forward)


def fake_tensors():
    """A forward on tensors without numbers in the middle of a step, as shape inference does it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, shapes = net(), []

    def forward(x):
        with FakeTensorMode(allow_non_fake_inputs=True):
            shapes.append(sum(torch.empty(4, 4).mm(torch.empty(4, 4)).shape))
        return model(x)

    _trained(model, forward, extra=shapes)


def _add(queue, value):
    queue.put(float(torch.full((2,), value).sum()))


def processes():
    model, sums = net(), []
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_add, args=(queue, 3.0))
    child.start()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(model, optimizer, scaler())
    sums.append(queue.get())
    child.join()
    digest([*losses, *sums], parameters(model))


def threads():
    """Another thread trains a model of its own, by its own generator."""
    model, other = net(), net()
    inputs = [x for x, _ in batches(20)]

    def beside():
        optimizer = torch.optim.SGD(other.parameters(), 1e-2)
        for x in inputs:
            optimizer.zero_grad()
            other[:3](x).square().mean().backward()
            optimizer.step()

    thread = threading.Thread(target=beside)
    thread.start()
    model[3].p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = train(model, optimizer, scaler())
    thread.join()
    digest(losses, parameters(model, other))


def hooks_and_swaps():
    """A model that sets hooks and swaps a part of itself at its first forward."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.rest, self.seen = nn.Identity(), net(), []

        def forward(self, x):
            if isinstance(self.part, nn.Identity):
                self.part = nn.ReLU()
                self.rest[0].register_forward_hook(lambda *_: self.seen.append(1))
            return self.rest(self.part(x))

    model = Lazy()
    _trained(model)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
