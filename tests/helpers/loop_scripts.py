"""Training loops as people write them: the tutorial's, which are right, and the same with one thing wrong.

Each is a function that trains a few steps; `device` is "cuda", and the CPU stands in for it.
"""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


def net(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4)).cuda()


def data(steps=4):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield (
            torch.randn(16, 8, generator=generator).cuda(),
            torch.randint(0, 4, (16,), generator=generator).cuda(),
        )


def half():
    return torch.autocast(device_type="cuda", dtype=torch.float16)


loss_fn = nn.CrossEntropyLoss()


def basic():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def unscaled_and_clipped():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()


def accumulated():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(data(8)):
        with half():
            loss = loss_fn(model(x), y) / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def two_models():
    a, b = net(16), net(32)
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.Adam(b.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in data():
        first.zero_grad()
        second.zero_grad()
        with half():
            out_a, out_b = a(x), b(x)
            loss_a = loss_fn(2 * out_a + 3 * out_b, y)
            loss_b = loss_fn(3 * out_a - 5 * out_b, y)
        scaler.scale(loss_a).backward(retain_graph=True)
        scaler.scale(loss_b).backward()
        scaler.unscale_(first)
        scaler.step(first)
        scaler.step(second)
        scaler.update()


def resumed(path):
    model = net()
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cuda")
    for start in range(2):
        if start:
            saved = torch.load(path, map_location="cuda")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            scaler.load_state_dict(saved["scaler"])
        for x, y in data(2):
            optimizer.zero_grad(set_to_none=True)
            with half():
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }
        torch.save(checkpoint, path)


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


def custom_function():
    model = net()
    weight = nn.Parameter(torch.randn(4, 4).cuda() / 2)
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(Product.apply(model(x), weight), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def gradient_penalty(divides=True):
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        grads = [grad / scaler.get_scale() for grad in scaled] if divides else scaled
        with half():
            loss = loss + sum(grad.pow(2).sum() for grad in grads).sqrt()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def without_amp():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data():
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def fused():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**19)
    for x, y in data(8):
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def fused_and_clipped():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in data():
        optimizer.zero_grad()
        with half():
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def switched_off():
    model = net()
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.amp.GradScaler("cuda", enabled=False),
    )
    for x, y in data():
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=False):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


#: As the tutorial has them: nothing is to be said of their order.
TUTORIALS = {
    "basic": basic,
    "unscaled and clipped": unscaled_and_clipped,
    "accumulated": accumulated,
    "two models": two_models,
    "custom function": custom_function,
    "gradient penalty": gradient_penalty,
    "without amp": without_amp,
    "switched off": switched_off,
    "fused": fused,
    "fused and clipped": fused_and_clipped,
}


def trains(
    *,
    region=half,
    enabled=True,
    forward_inside=True,
    backward_inside=False,
    scaled=True,
    clip="",
    unscale=1,
    direct=False,
    update=1,
    peek=False,
    validate=False,
    schedule=False,
    save="",
    init_scale=2.0**16,
    parts=1,
    scaler_steps=True,
):
    """Train the tutorial's loop with changes; an exception of torch's ends it, as it would in the script."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=init_scale, enabled=enabled)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for x, y in data():
        optimizer.zero_grad()
        for _ in range(parts):
            out = None if forward_inside else model(x)
            with region():
                out = model(x) if forward_inside else out
                loss = loss_fn(out, y)
                if backward_inside:
                    scaler.scale(loss).backward()
            if not backward_inside:
                (scaler.scale(loss) if scaled else loss).backward()
        if clip == "before":
            clip_grad_norm_(model.parameters(), 1.0)
        for _ in range(unscale if clip != "before" else 0):
            scaler.unscale_(optimizer)
        if scaler_steps:
            scaler.step(optimizer)
        for _ in range(update):
            scaler.update()
        if clip == "after":
            clip_grad_norm_(model.parameters(), 1.0)
        if direct:
            optimizer.step()
        if peek:
            getattr(scaler, "_found_inf", None)
        if schedule:
            scheduler.step()
    if save:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, save)
    if validate:
        model.eval()
        with torch.no_grad():
            model(x)


def unscaled_while_growing():
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in data(1):
        for part in range(2):
            with half():
                loss = loss_fn(model(x), y) / 2
            scaler.scale(loss).backward()
            if part == 0:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def updated_between():
    a, b = net(16), net(32)
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in data():
        first.zero_grad()
        second.zero_grad()
        with half():
            loss_a, loss_b = loss_fn(a(x), y), loss_fn(b(x), y)
        scaler.scale(loss_a).backward()
        scaler.scale(loss_b).backward()
        scaler.step(first)
        scaler.update()
        scaler.step(second)
        scaler.update()
