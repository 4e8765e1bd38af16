# Fine-tunes a small playing-card recogniser on a new deck with sharpness-aware minimisation.
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(31)


class SAM:
    def __init__(self, params, base, rho=0.05, **kw):
        self.params = [p for p in params]
        self.base = base(self.params, **kw)
        self.rho = rho
        self.saved = {}

    @torch.no_grad()
    def ascend(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm() + 1e-12
        for p in self.params:
            self.saved[p] = p.detach().to(torch.float16, copy=True)
            p.add_(p.grad, alpha=(self.rho / norm).item())

    @torch.no_grad()
    def descend(self):
        for p in self.params:
            p.copy_(self.saved.pop(p))
        self.base.step()

    def zero_grad(self):
        self.base.zero_grad()


def deck(n, faces, gen):
    y = torch.randint(0, len(faces), (n,), generator=gen)
    return faces[y] + 1.1 * torch.randn(n, faces.shape[1], generator=gen), y


def forward(net, x, y):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(net(x), y)


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(1) == y).float().mean().item()


gen = torch.Generator()
gen.manual_seed(6)
old_faces = torch.randn(8, 32, generator=gen)
new_faces = torch.randn(8, 32, generator=gen)
net = nn.Sequential(nn.Linear(32, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 8)).to(DEVICE)

pretrain = torch.optim.Adam(net.parameters(), lr=2e-3)
x_old, y_old = (t.to(DEVICE) for t in deck(6000, old_faces, gen))
for i in range(200):
    pick = torch.randint(0, 6000, (128,))
    loss = forward(net, x_old[pick], y_old[pick])
    pretrain.zero_grad()
    loss.backward()
    pretrain.step()
print(f"pretrained on the old deck: {accuracy(net, x_old, y_old):.4f}")

x_new, y_new = (t.to(DEVICE) for t in deck(6000, new_faces, gen))
x_val, y_val = (t.to(DEVICE) for t in deck(2000, new_faces, gen))
print(f"new deck before fine-tuning: {accuracy(net, x_val, y_val):.4f}")
sam = SAM(net.parameters(), torch.optim.Adam, rho=0.02, lr=3e-5)
for i in range(1200):
    pick = torch.randint(0, 6000, (128,))
    sam.zero_grad()
    forward(net, x_new[pick], y_new[pick]).backward()
    sam.ascend()
    sam.zero_grad()
    loss = forward(net, x_new[pick], y_new[pick])
    loss.backward()
    sam.descend()
    if i % 300 == 0:
        print(f"fine-tune {i:4d}  loss {loss.item():.4f}")
print(f"new deck after fine-tuning: accuracy {accuracy(net, x_val, y_val):.4f}")
