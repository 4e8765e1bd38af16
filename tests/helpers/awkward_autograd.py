"""Awkward models with autograd of their own: checkpoints, custom functions, transforms, double backward."""

import torch
from awkward_models import Case, Net, case, total
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.net, self.norm, self.reentrant = Net(), nn.LayerNorm(8), reentrant
        self.drop = nn.Dropout(0.25)

    def _inner(self, x):
        return torch.tanh(self.drop(self.net(x))) * 2.0

    def forward(self, x):
        if self.reentrant is None:
            return self.norm(self._inner(x))
        y = checkpoint(self._inner, x, use_reentrant=self.reentrant)
        return self.norm(y)


def checkpointed(*, reentrant: bool | None) -> Case:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(8, 8), Block(reentrant=reentrant), Block(reentrant=reentrant), nn.Linear(8, 2)
    )
    return Case(model, torch.randn(4, 8), total)


@case
def checkpoint_reentrant() -> Case:
    return checkpointed(reentrant=True)


@case
def checkpoint_non_reentrant() -> Case:
    return checkpointed(reentrant=False)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class Cast32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


class Cast16(Cast32):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w


class Custom(Net):
    def __init__(self) -> None:
        super().__init__()
        self.w32, self.w16 = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = Cube.apply(self.fc1(x))
        y = Cast32.apply(y, self.w32)
        return Cast16.apply(y, self.w16)


@case
def custom_functions() -> Case:
    return Case(Custom(), torch.randn(4, 8), total)


@case
def transforms() -> Case:
    class Model(Net):
        def forward(self, x):
            y = torch.vmap(self.fc1)(x)
            params = {name: p * 1.5 for name, p in self.fc2.named_parameters()}
            z = torch.func.functional_call(self.fc2, params, (y,))
            slope = torch.func.grad(lambda t: t.sin().sum())(z)
            return z + slope

    return Case(Model(), torch.randn(4, 8), total)


@case
def gradient_penalty() -> Case:
    def loss(model, x):
        x = x.clone().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (slope.norm(dim=1) - 1).square().mean()

    return Case(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(4, 8), loss)


@case
def inference_parts() -> Case:
    class Model(Net):
        def forward(self, x):
            with torch.inference_mode():
                frozen = self.fc2(x)
            with torch.no_grad():
                teacher = self.fc2(x)
            return self.fc1(x) * frozen.clone().sum() * teacher.sum()

    return Case(Model(), torch.randn(4, 8), total)
