"""More awkward models: wrapped, proxied, compiled, scripted, with tensors or autocast of their own."""

import warnings
from typing import Any

import torch
from awkward_models import Case, Net, case, total
from torch import nn
from torch.nn import functional as F


@case
def data_parallel() -> Case:
    return Case(nn.DataParallel(Net()), torch.randn(4, 8), total)


@case
def overrides_call() -> Case:
    class Direct(Net):
        def __call__(self, x):
            return self.forward(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.direct, self.bypassed, self.unused = Direct(), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.bypassed.forward(self.direct(x))

    return Case(Model(), torch.randn(4, 8), total)


@case
def overrides_train_and_getattr() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.bn = Net(), nn.BatchNorm1d(8)

        def train(self, mode=True):  # torch's own signature
            super().train(mode)
            self.bn.eval()
            return self

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.net, name)

        def named_modules(self):
            raise RuntimeError("not for you")

        def parameters(self):
            raise RuntimeError("not for you")

        def forward(self, x):
            return self.bn(self.fc1(x)) + self.fc2.weight.sum()

    return Case(Model().train(), torch.randn(4, 8), total)


class Proxy:
    def __init__(self, module: nn.Module) -> None:
        object.__setattr__(self, "_held", module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def __call__(self, *args: Any) -> Any:
        return self._held(*args)


@case
def proxy() -> Case:
    return Case(Proxy(Net()), torch.randn(4, 8), total)


@case
def function() -> Case:
    net, scale = Net(), torch.tensor(2.0)

    def call(x):
        return net(x) * scale

    return Case(call, torch.randn(4, 8), total)


@case
def two_modules_side_by_side() -> Case:
    class Pair:
        def __init__(self):
            self.encoder, self.decoder = Net(), nn.Linear(8, 2)

        def __call__(self, x):
            return self.decoder(self.encoder(x))

    return Case(Pair(), torch.randn(4, 8), total)


@case
def compiled() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.compile(Net())
            self.head = nn.Linear(8, 2)
            self.head.compile()

        def forward(self, x):
            return self.head(self.body(x))

    with warnings.catch_warnings(action="ignore"):  # what the compiler loads warns of itself
        return Case(torch.compile(Model()), torch.randn(4, 8), total)


@case
def scripted() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            with warnings.catch_warnings(action="ignore"):  # deprecated, and in use
                self.part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
            self.fc = nn.Linear(8, 2)

        def forward(self, x):
            return self.fc(self.part(x))

    return Case(Model(), torch.randn(4, 8), total)


@case
def lazy() -> Case:
    return Case(
        nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Dropout(0.3), nn.LazyLinear(2)),
        torch.randn(4, 6),
        total,
    )


class Doubled(torch.Tensor):
    """A wrapper subclass with a dispatch of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = torch.utils._pytree.tree_map(
            lambda t: t.inner if isinstance(t, cls) else t, (args, kwargs or {})
        )
        return torch.utils._pytree.tree_map(
            lambda t: cls(t) if isinstance(t, torch.Tensor) else t, func(*plain[0], **plain[1])
        )


class Named(torch.Tensor):
    """A subclass that only carries a name, as torchvision's do."""


@case
def quantized_nested_and_subclassed() -> Case:
    # The first jagged tensor of a process runs a few operations of torch's own, which no later one runs.
    (torch.nested.nested_tensor([torch.ones(1, 2)], layout=torch.jagged) * 2).values().sum()

    class Model(Net):
        def forward(self, x):
            y = self.fc1(x)
            with warnings.catch_warnings(action="ignore"):  # deprecated, and in use
                q = torch.quantize_per_tensor(y.detach().float(), 0.1, 0, torch.quint8).dequantize()
            nested = torch.nested.nested_tensor([y[0].detach(), y[1, :3].detach()], layout=torch.jagged)
            doubled = Doubled(y.detach()) * 2
            named = (y * 1.25).as_subclass(Named)
            return self.fc2(named).as_subclass(torch.Tensor) + q + doubled.inner + (nested * 2).values().sum()

    return Case(Model(), torch.randn(4, 8), total)


@case
def autocast_islands() -> Case:
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cuda", enabled=False):
                a = self.a(x)
            with torch.autocast("cpu", enabled=False):
                b = self.b(x)
            with torch.amp.autocast(
                "cuda", enabled=torch.is_autocast_enabled(), dtype=torch.get_autocast_dtype("cuda")
            ):
                c = self.c(x)
            return self.fc1(x) + a + b + c

    return Case(Model(), torch.randn(4, 8), total)


@case
def integer_and_mixed_precision() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.full = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 2)

        def forward(self, x):
            return self.full(self.low(x.to(self.low.weight.dtype)).float())

    return Case(Model(), torch.randn(4, 8), total)


@case
def half_that_insists() -> Case:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8).bfloat16()

        def forward(self, x):
            return F.linear(x.bfloat16(), self.fc.weight)

    return Case(Model(), torch.randn(4, 8), total)


@case
def weight_hooks() -> Case:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))
    return Case(nn.Sequential(layer, spectral), torch.randn(4, 8), total)


def tripled(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(3.0)


@case
def backward_hooks() -> Case:
    model = Net()
    model.fc1.register_full_backward_hook(
        lambda module, into, out: tuple(g * 0.5 for g in into if g is not None) or None
    )
    model.fc2.weight.register_hook(lambda grad: grad * 2)
    model.fc1.weight.register_post_accumulate_grad_hook(tripled)
    model.fc1.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return Case(model, torch.randn(4, 8).requires_grad_(), total)


@case
def subclassed_inputs() -> Case:
    class Pieces(nn.Module):
        def forward(self, x):
            return {"named": (x * 3).as_subclass(Named), "sparse": torch.eye(4).to_sparse() * 2}

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.pieces = Pieces()

        def forward(self, x):
            pieces = self.pieces(self.fc1(x).as_subclass(Named))
            return self.fc2(pieces["named"].as_subclass(torch.Tensor)) + pieces["sparse"].to_dense().sum()

    return Case(Model(), torch.randn(4, 8), total)
