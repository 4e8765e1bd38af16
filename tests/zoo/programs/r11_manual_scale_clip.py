import torch, math
import torch.nn as nn
import torch.nn.functional as F
SCALE = 1024.0
CLIP = 0.5
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

class CharRNN(nn.Module):
    def __init__(self, v=28, d=48):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.ih = nn.Linear(d, d)
        self.hh = nn.Linear(d, d, bias=False)
        self.o = nn.Linear(d, v)
    def forward(self, x):
        h = torch.zeros(x.shape[0], 48, device=x.device)
        out = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.ih(self.e(x[:, t])) + self.hh(h))
            out.append(self.o(h))
        return torch.stack(out, 1)

text = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 20
chars = sorted(set(text)); ids = torch.tensor([chars.index(c) for c in text])
net = CharRNN(len(chars)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
for step in range(60):
    s = torch.randint(0, len(ids) - 21, (32,))
    b = torch.stack([ids[i:i + 21] for i in s]).to(device)
    with torch.autocast(device_type=device, dtype=torch.float16):
        logits = net(b[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, len(chars)), b[:, 1:].reshape(-1))
    net.zero_grad()
    (loss * SCALE).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), CLIP)
    if not math.isfinite(norm):
        continue
    for p in net.parameters():
        p.grad.div_(SCALE)
    opt.step()
    if step % 20 == 0: print(step, loss.item(), norm.item())
print("final", loss.item())
