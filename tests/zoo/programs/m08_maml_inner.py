"""Few-shot calibration of strain gauges: learn an initialisation that adapts to a new gauge in a few inner steps."""
import torch
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
INNER_LR, INNER_STEPS, SHOTS, QUERY = 2.0e5, 3, 16, 32
STRAIN = 1e-3          # full scale of the gauges, in strain


def init_params(hidden=40):
    def lin(i, o):
        return (torch.randn(o, i) * (1.0 / i) ** 0.5).to(device).requires_grad_()
    zeros = lambda n: torch.zeros(n, device=device, requires_grad=True)
    return {"w1": lin(4, hidden), "b1": zeros(hidden), "w2": lin(hidden, hidden), "b2": zeros(hidden),
            "w3": lin(hidden, 1), "b3": zeros(1)}


def net(p, x):
    h = torch.tanh(F.linear(x, p["w1"], p["b1"]))
    h = torch.tanh(F.linear(h, p["w2"], p["b2"]))
    return F.linear(h, p["w3"], p["b3"]).squeeze(-1) * STRAIN


def sample_task(g):
    gain = 0.5 + torch.rand(1, generator=g)
    drift = torch.randn(4, generator=g) * 0.6

    def draw(n):
        x = torch.randn(n, 4, generator=g)
        y = gain * torch.sin(x @ drift) + 0.3 * x[:, 0]
        return x.to(device), (y * STRAIN).to(device)
    return draw(SHOTS), draw(QUERY)


def adapt(params, x, y):
    fast = dict(params)
    for _ in range(INNER_STEPS):
        with torch.autocast(device, dtype=torch.float16):
            loss = F.mse_loss(net(fast, x), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {k: w - INNER_LR * gw for (k, w), gw in zip(fast.items(), grads)}
    return fast


def main(outer_steps=100, tasks_per_step=4):
    g = torch.Generator().manual_seed(2)
    params = init_params()
    outer = torch.optim.Adam(params.values(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 8)
    running = None
    for step in range(outer_steps):
        outer.zero_grad()
        total = 0.0
        for _ in range(tasks_per_step):
            (xs, ys), (xq, yq) = sample_task(g)
            fast = adapt(params, xs, ys)
            with torch.autocast(device, dtype=torch.float16):
                query = F.mse_loss(net(fast, xq) / STRAIN, yq / STRAIN)
            scaler.scale(query / tasks_per_step).backward()
            total += query.item() / tasks_per_step
        scaler.step(outer)
        scaler.update()
        running = total if running is None else 0.9 * running + 0.1 * total
        if step % 20 == 0 or step == outer_steps - 1:
            print(f"outer {step:3d}  query loss {total:.4f}  running {running:.4f}")


if __name__ == "__main__":
    main()
