"""FedAvg simulation: ten hospitals, one shared tabular risk model, partial participation."""
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"

N_CLIENTS, PER_ROUND, ROUNDS, LOCAL_STEPS = 10, 4, 160, 2
CLIENT_LR, SERVER_LR = 0.02, 0.1
N_FEAT, N_CLS = 40, 6


def build_model():
    return nn.Sequential(nn.Linear(N_FEAT, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, N_CLS))


teacher = nn.Sequential(nn.Linear(N_FEAT, 32), nn.Tanh(), nn.Linear(32, N_CLS)).to(device)
for p in teacher.parameters():
    p.requires_grad_(False)
    p.mul_(1.5)


def make_site(k, n):
    x = torch.randn(n, N_FEAT, device=device) + 0.3 * torch.randn(N_FEAT, device=device)
    return 6.0 * x, teacher(x).argmax(-1)      # raw units of the lab values


class Site:
    def __init__(self, k):
        self.x, self.y = make_site(k, 200 + 40 * k)
        self.model = build_model().to(device)

    def local_round(self, weights):
        self.model.load_state_dict({k: v.float() for k, v in weights.items()})
        opt = torch.optim.SGD(self.model.parameters(), lr=CLIENT_LR)
        for _ in range(LOCAL_STEPS):
            idx = torch.randint(0, len(self.x), (64,), device=device)
            with torch.autocast(device_type=device, dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(self.x[idx]), self.y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        delta = {k: v - weights[k].float() for k, v in self.model.state_dict().items()}
        return delta, len(self.x), loss.item()


class Server:
    """Keeps the global weights; they are broadcast as they are stored."""

    def __init__(self):
        init = build_model().to(device)
        self.weights = {k: v.detach().to(torch.bfloat16) for k, v in init.state_dict().items()}

    def aggregate(self, updates):
        total = sum(n for _, n, _ in updates)
        for name, w in self.weights.items():
            step = sum(d[name] * (n / total) for d, n, _ in updates)
            w.add_((SERVER_LR * step).to(w.dtype))


sites = [Site(k) for k in range(N_CLIENTS)]
server = Server()
x_test, y_test = make_site(99, 2000)
judge = build_model().to(device)


def evaluate():
    judge.load_state_dict({k: v.float() for k, v in server.weights.items()})
    with torch.no_grad():
        out = judge(x_test)
    return F.cross_entropy(out, y_test).item(), (out.argmax(-1) == y_test).float().mean().item()


start = copy.deepcopy(server.weights)
for rnd in range(ROUNDS):
    chosen = torch.randperm(N_CLIENTS)[:PER_ROUND].tolist()
    updates = [sites[k].local_round(server.weights) for k in chosen]
    server.aggregate(updates)
    if rnd % 20 == 19:
        val_loss, acc = evaluate()
        mean_loss = sum(u[2] for u in updates) / len(updates)
        print(f"round {rnd + 1:3d}  client loss {mean_loss:.4f}  val loss {val_loss:.4f}  val acc {acc:.3f}")
moved = sum((server.weights[k].float() - start[k].float()).norm().item() for k in start)
print(f"distance travelled {moved:.3f}")
