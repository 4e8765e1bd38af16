"""Pump-station edge gateways train a shared wear model through an in-process parameter server (one thread per gateway)."""
import queue
import threading
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(25)
torch.set_num_threads(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
GATEWAYS, ROUNDS, BATCH, LR = 3, 250, 64, 1e-4
WIRE = torch.bfloat16           # weights and gradients travel over the plant network in this type


def wear_net():
    return nn.Sequential(nn.Linear(10, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))


class ParameterServer(threading.Thread):
    def __init__(self, template):
        super().__init__(daemon=True)
        self.store = {k: v.detach().to(WIRE).clone() for k, v in template.named_parameters()}
        self.m = {k: torch.zeros_like(v, dtype=torch.float32) for k, v in self.store.items()}
        self.v = {k: torch.zeros_like(v, dtype=torch.float32) for k, v in self.store.items()}
        self.inbox = queue.Queue()
        self.version = 0
        self.cond = threading.Condition()

    def pull(self, version):
        with self.cond:
            self.cond.wait_for(lambda: self.version >= version)
            return {k: v.to(WIRE) for k, v in self.store.items()}

    def run(self):
        for t in range(1, ROUNDS + 1):
            pushed = dict(self.inbox.get() for _ in range(GATEWAYS))
            with self.cond, torch.no_grad():
                for k, w in self.store.items():
                    g = sum(pushed[i][k].float() for i in range(GATEWAYS)) / GATEWAYS
                    self.m[k].lerp_(g, 0.1)
                    self.v[k].lerp_(g * g, 0.01)
                    step = (self.m[k] / (1 - 0.9 ** t)) / ((self.v[k] / (1 - 0.99 ** t)).sqrt() + 1e-8)
                    w.sub_(step, alpha=LR)
                self.version += 1
                self.cond.notify_all()


def pump_batch(gen, site):
    x = torch.randn(BATCH, 10, generator=gen) + 0.2 * site
    wear = 1.0 + 0.8 * x[:, 0] - 0.6 * x[:, 1] + 0.5 * torch.relu(x[:, 2]) + 0.3 * x[:, 3] * x[:, 4]
    return x.to(device), wear[:, None].to(device)


def gateway(rank, server, log):
    gen = torch.Generator().manual_seed(100 + rank)
    net = wear_net().to(device)
    for r in range(ROUNDS):
        weights = server.pull(r)
        with torch.no_grad():
            for k, p in net.named_parameters():
                p.copy_(weights[k])
        x, y = pump_batch(gen, rank - 1)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = F.mse_loss(net(x), y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        server.inbox.put((rank, {k: g.to(WIRE) for (k, _), g in zip(net.named_parameters(), grads)}))
        log[rank].append(loss.item())


server = ParameterServer(wear_net().to(device))
log = [[] for _ in range(GATEWAYS)]
threads = [threading.Thread(target=gateway, args=(i, server, log)) for i in range(GATEWAYS)]
server.start()
for t in threads:
    t.start()
for t in threads:
    t.join()
server.join()
for r in range(0, ROUNDS, 25):
    print(f"round {r:3d} " + " ".join(f"{l[r]:.4f}" for l in log))
print("last 20 rounds", [round(sum(l[-20:]) / 20, 4) for l in log])
