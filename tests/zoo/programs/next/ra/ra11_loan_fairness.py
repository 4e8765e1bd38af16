"""Credit risk with an adversary that must not find the region of a client in the score's features."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp_dtype = torch.float16  # torch.float32 switches mixed precision off
FEATURES, BATCH, STEPS = 16, 256, 200

risk_weights = torch.randn(FEATURES) / FEATURES**0.5
region_shift = 0.5 * torch.randn(FEATURES)


def clients(n):
    region = torch.randint(0, 2, (n,))
    x = torch.randn(n, FEATURES) + region[:, None] * region_shift
    clean = x - region[:, None] * region_shift
    logit = 4.0 * torch.tanh(clean @ risk_weights) + 2.0 * clean[:, 0] * clean[:, 1]
    default = (torch.rand(n) < torch.sigmoid(logit)).float()
    return x.to(device), default.to(device), region.float().to(device)


encoder = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).to(device)
scorer = nn.Linear(32, 1).to(device)
adversary = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
main_params = [*encoder.parameters(), *scorer.parameters()]
opt_main = torch.optim.Adam(main_params, lr=3e-3, eps=1e-6)
opt_adv = torch.optim.Adam(adversary.parameters(), lr=3e-3, eps=1e-6)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**11, enabled=amp_dtype != torch.float32)

for step in range(STEPS):
    x, default, region = clients(BATCH)

    opt_adv.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        guess = adversary(encoder(x).detach()).squeeze(-1)
        adv_loss = F.binary_cross_entropy_with_logits(guess, region)
    scaler.scale(adv_loss).backward()
    scaler.unscale_(opt_adv)
    nn.utils.clip_grad_norm_(adversary.parameters(), 1.0)
    scaler.step(opt_adv)

    opt_main.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=amp_dtype):
        feature = encoder(x)
        score = scorer(feature).squeeze(-1)
        # the encoder is pushed towards a guess of one half
        confusion = F.binary_cross_entropy_with_logits(adversary(feature).squeeze(-1), torch.full_like(region, 0.5))
        main_loss = F.binary_cross_entropy_with_logits(score, default) + 0.1 * confusion
    scaler.scale(main_loss).backward()
    scaler.unscale_(opt_main)
    nn.utils.clip_grad_norm_(main_params, 1.0)
    scaler.step(opt_main)
    scaler.update()
    if step % 50 == 49:
        print(f"step {step + 1} risk {main_loss.item():.4f} adversary {adv_loss.item():.4f} scale {scaler.get_scale():g}")

x, default, region = clients(8192)
with torch.no_grad(), torch.autocast("cuda", dtype=amp_dtype):
    score = scorer(encoder(x)).squeeze(-1)
print(f"metric {F.binary_cross_entropy_with_logits(score.float(), default).item():.4f}")
