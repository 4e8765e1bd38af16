import copy
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class MetricsThread(threading.Thread):
    """Computes the validation figures beside the training."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        self.nll, self.hits, self.tokens = None, 0, 0
        self.start()

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            if item == "epoch":
                self.outbox.put((self.nll.item() / self.tokens, self.hits / self.tokens))
                self.nll, self.hits, self.tokens = None, 0, 0
                continue
            self.add(*item)

    def add(self, logits, targets):
        logits, targets = logits.flatten(0, 1), targets.flatten()
        if self.nll is None:
            self.nll = logits.new_zeros(())
        self.nll += F.cross_entropy(logits, targets, reduction="sum")
        self.hits += int((logits.argmax(-1) == targets).sum())
        self.tokens += targets.numel()

    def epoch(self):
        self.inbox.put("epoch")
        return self.outbox.get()


class TinyLM(nn.Module):
    def __init__(self, vocab=40, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, vocab)

    def forward(self, tokens):
        h = self.embed(tokens)
        before = F.pad(h, (0, 0, 1, 0))[:, :-1]
        return self.out(torch.tanh(self.mix(torch.cat([h, before], -1))))


class Trainer:
    def __init__(self, model, lr=5e-3):
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        self.metrics = MetricsThread()
        self.best, self.best_weights = float("inf"), copy.deepcopy(model.state_dict())

    def train(self, batches):
        for tokens in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                logits = self.model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    @torch.no_grad()
    def validate(self, batches):
        for tokens in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                logits = self.model(tokens[:, :-1])
            self.metrics.inbox.put((logits, tokens[:, 1:]))
        nll, accuracy = self.metrics.epoch()
        if nll < self.best:
            self.best, self.best_weights = nll, copy.deepcopy(self.model.state_dict())
        return nll, accuracy

    def finish(self):
        self.metrics.inbox.put(None)
        self.metrics.join()
        self.model.load_state_dict(self.best_weights)


def make_batches(count, table, batch=32, length=65):
    out = []
    for _ in range(count):
        tokens = torch.zeros(batch, length, dtype=torch.long)
        tokens[:, 0] = torch.randint(len(table), (batch,))
        for t in range(1, length):
            tokens[:, t] = torch.multinomial(table[tokens[:, t - 1]], 1)[:, 0]
        out.append(tokens.to(device))
    return out


def main():
    torch.manual_seed(8)
    table = torch.softmax(2.0 * torch.randn(40, 40), -1)
    train, valid, test = make_batches(15, table), make_batches(24, table), make_batches(4, table)
    trainer = Trainer(TinyLM())
    for epoch in range(4):
        loss = trainer.train(train)
        nll, accuracy = trainer.validate(valid)
        print(f"epoch {epoch}: train {loss:.4f} valid {nll:.4f} accuracy {accuracy:.4f}")
    trainer.finish()
    with torch.no_grad():
        losses = [F.cross_entropy(trainer.model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()) for t in test]
    print(f"best weights: test {torch.stack(losses).mean().item():.4f}")


if __name__ == "__main__":
    main()
