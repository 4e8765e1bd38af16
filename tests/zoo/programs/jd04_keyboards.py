"""Federated next-word suggestion: phones train in parallel, a server averages their weights each round."""
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, CONTEXT, PHONES, ROUNDS, LOCAL_STEPS = 40, 3, 4, 80, 1
WIRE = torch.bfloat16


class Suggest(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.out = nn.Embedding(VOCAB, width)

    def forward(self, context):
        words = self.words(context)
        query = words[:, -1] + 0.3 * words[:, :-1].mean(1)
        return 0.5 * F.linear(query, self.out.weight)


def make_text(count):
    context = torch.randint(0, VOCAB, (count, CONTEXT))
    follow = (context[:, -1] * 7 + 3) % VOCAB
    noise = torch.rand(count) < 0.05
    follow[noise] = torch.randint(0, VOCAB, (int(noise.sum()),))
    return context.to(device), follow.to(device)


class Server:
    def __init__(self):
        self.weights = {k: v.detach().clone() for k, v in Suggest().to(device).state_dict().items()}

    def broadcast(self):
        return {k: v.to(WIRE) for k, v in self.weights.items()}

    def collect(self, uploads):
        for name, value in self.weights.items():
            value.copy_(torch.stack([u[name].float() for u in uploads]).mean(0))


class Phone:
    def __init__(self, number):
        self.context, self.follow = make_text(600)
        self.model = Suggest().to(device)
        self.draw = torch.Generator().manual_seed(100 + number)

    def train(self, received):
        self.model.load_state_dict({k: v.float() for k, v in received.items()})
        optimizer = torch.optim.Adam(self.model.parameters(), lr=LR)
        for _ in range(LOCAL_STEPS):
            pick = torch.randint(0, len(self.context), (128,), generator=self.draw)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(self.context[pick]), self.follow[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {k: v.detach().to(WIRE) for k, v in self.model.state_dict().items()}, loss.item()


LR = 2e-3


def main():
    torch.manual_seed(21)
    server = Server()
    phones = [Phone(i) for i in range(PHONES)]
    context, follow = make_text(1000)
    with ThreadPoolExecutor(PHONES) as pool:
        for turn in range(ROUNDS):
            received = server.broadcast()
            answers = list(pool.map(lambda phone: phone.train(received), phones))
            server.collect([weights for weights, _ in answers])
            if turn % 10 == 0:
                print(f"round {turn} loss {sum(l for _, l in answers) / PHONES:.4f}")
    model = Suggest().to(device)
    model.load_state_dict(server.weights)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(context), follow).item()
    print(f"metric {loss:.4f}")


if __name__ == "__main__":
    main()
