"""Distil a token model in two sittings: teacher in half precision, two optimizers, a small parked state."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(24)
device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CONTEXT, BATCH, TEMP = 500, 3, 384, 2.0
centres = torch.randn(VOCAB, 16, device=device)


class Windowed(nn.Module):
    """Predicts the next token from the last few."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.body = nn.Sequential(nn.Linear(dim * CONTEXT, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ctx):
        return self.out(self.body(self.embed(ctx).flatten(1)))


def contexts(n):
    ctx = torch.randint(0, VOCAB, (n, CONTEXT), device=device)
    state = centres[ctx[:, 0]] + 0.7 * centres[ctx[:, 1]] - 0.4 * centres[ctx[:, 2]]
    return ctx, torch.softmax(state @ centres.t() / 2, 1).multinomial(1).squeeze(1)


def optimizers(model):
    table = torch.optim.Adam(model.embed.parameters(), lr=1e-2)
    rest = torch.optim.AdamW([*model.body.parameters(), *model.out.parameters()], lr=4e-3)
    return [table, rest]


def step(model, opts, scaler, loss):
    for opt in opts:
        opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    for opt in opts:
        scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    for opt in opts:
        scaler.step(opt)
    scaler.update()


def park(tree):
    """First and second moments go to disk in two bytes each."""
    if isinstance(tree, torch.Tensor):
        return tree.to(torch.bfloat16) if tree.dim() > 0 else tree.clone()
    return {k: park(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def sitting(model, opts, scaler, steps, teacher=None):
    for _ in range(steps):
        ctx, target = contexts(BATCH)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(ctx)
            loss = F.cross_entropy(logits, target)
            if teacher is not None:
                with torch.no_grad():
                    soft = F.softmax(teacher(ctx) / TEMP, dim=1)
                loss = 0.3 * loss + TEMP**2 * F.kl_div(F.log_softmax(logits / TEMP, 1), soft, reduction="batchmean")
        step(model, opts, scaler, loss)
    print(f"loss {loss.item():.3f} scale {scaler.get_scale():.0f}")


teacher = Windowed(48, 160).to(device)
sitting(teacher, optimizers(teacher), torch.amp.GradScaler("cuda"), 150)
teacher = teacher.to(torch.float16).eval().requires_grad_(False)

student = Windowed(24, 64).to(device)
opts = optimizers(student)
sitting(student, opts, torch.amp.GradScaler("cuda"), 100, teacher)
weights = {k: v.to(torch.float16) for k, v in student.state_dict().items()}
states = [park(opt.state_dict()) for opt in opts]

student = Windowed(24, 64).to(device)  # second sitting: the scale is not part of what was parked
student.load_state_dict(weights)
opts = optimizers(student)
for opt, state in zip(opts, states):
    opt.load_state_dict(state)
sitting(student, opts, torch.amp.GradScaler("cuda", init_scale=2.0**21, growth_interval=100), 80, teacher)

with torch.no_grad():
    ctx, target = contexts(8000)
    print(f"RESULT {F.cross_entropy(student(ctx), target).item():.4f}")
