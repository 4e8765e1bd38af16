# Papers -> venues -> papers message passing. Venues collect hundreds of papers, the venue topic decides the label.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"
PAPERS, VENUES, CLASSES, FEAT = 16000, 12, 6, 24


def build_graph():
    size = torch.linspace(1.0, 12.0, VENUES)
    venue = torch.multinomial(size, PAPERS, replacement=True)
    topic = torch.randn(VENUES, FEAT)
    group = torch.arange(VENUES) % CLASSES
    centres = torch.randn(CLASSES, FEAT)
    x = 0.35 * centres[group[venue]] + 0.35 * topic[venue] + torch.randn(PAPERS, FEAT)
    own = torch.randn(CLASSES, FEAT)
    y = torch.where(torch.rand(PAPERS) < 0.6, group[venue], (x @ own.T).argmax(1))
    extra = torch.randint(0, VENUES, (PAPERS // 10,))
    src = torch.cat([torch.arange(PAPERS), torch.randperm(PAPERS)[: len(extra)]])
    return x, y, src, torch.cat([venue, extra])


def scatter_mean(messages, index, size):
    total = messages.new_zeros(size, messages.shape[1]).float().index_add_(0, index, messages.float())
    degree = messages.new_zeros(size).index_add_(0, index, messages.new_ones(len(index)))
    return (total / degree.clamp(min=1)[:, None]).to(messages.dtype)


class VenueNet(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lift = nn.Linear(FEAT, hidden)
        self.gather = nn.Linear(hidden, hidden)
        self.spread = nn.Linear(hidden, hidden)
        self.head = nn.Linear(2 * hidden, CLASSES)

    def forward(self, x, src, dst):
        h = F.relu(self.lift(x))
        venue = torch.tanh(self.gather(scatter_mean(h[src], dst, VENUES)))
        back = scatter_mean(self.spread(venue)[dst], src, len(x))
        return self.head(torch.cat([h, back], 1))


x, y, src, dst = (t.to(device) for t in build_graph())
train = torch.rand(PAPERS, device=device) < 0.5
model = VenueNet().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
for epoch in range(1, 101):
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(x, src, dst)
        loss = F.cross_entropy(logits[train].float(), y[train])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if epoch % 20 == 0:
        acc = (logits.argmax(1) == y)[~train].float().mean().item()
        print(f"epoch {epoch:3d} loss {loss.item():.4f} test accuracy {acc:.4f}")
with torch.no_grad():
    served = model(x, src, dst)
test_loss = F.cross_entropy(served[~train], y[~train]).item()
acc = (served.argmax(1) == y)[~train].float().mean().item()
print(f"final test loss {test_loss:.4f}, test accuracy {acc:.4f}")
