import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tagger(nn.Module):
    def __init__(self, vocab=30, width=48, tags=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.out = nn.Linear(width, tags)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + torch.relu(self.conv(h.transpose(1, 2)).transpose(1, 2))
        return self.out(h).clamp(-30, 30)


class PersistentTrainer:
    """Repeats a window of micro-batches at a lower scale until its step is taken."""

    def __init__(self, model, lr=0.05, attempts=25, max_norm=1.0):
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**26, growth_interval=6)
        self.attempts, self.max_norm = attempts, max_norm
        self.repeats = 0
        self.seen = torch.zeros((), dtype=torch.float64)

    def accumulate(self, window):
        total = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for tokens, tags in window:
            with torch.autocast("cuda", dtype=torch.float16):
                logits = self.model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), reduction="sum")
                loss = loss / (len(window) * len(tokens))
            self.scaler.scale(loss).backward()
            total += loss.item()
        return total

    def step(self, window):
        for _ in range(self.attempts):
            loss = self.accumulate(window)
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.scaler.step(self.optimizer)
            before = self.scaler.get_scale()
            self.scaler.update()
            if self.scaler.get_scale() >= before:
                self.seen += sum(tokens.numel() for tokens, _ in window)
                return loss
            self.repeats += 1
        raise RuntimeError("the gradients stay infinite")


def make_text(n, rule, length=20):
    tokens = torch.randint(30, (n, length))
    before = torch.roll(tokens, 1, 1)
    before[:, 0] = 0
    return tokens.to(device), rule[tokens, before].to(device)


def main():
    torch.manual_seed(31)
    first, second = torch.randint(8, (30,)), torch.randint(2, (30,))
    rule = (first[:, None] + second[None, :]) % 8
    trainer = PersistentTrainer(Tagger())
    for step in range(60):
        window = [make_text(16, rule) for _ in range(2)]
        loss = trainer.step(window)
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss:.3f}")
    tokens, tags = make_text(200, rule)
    with torch.no_grad():
        accuracy = (trainer.model(tokens).argmax(-1) == tags).float().mean().item()
    print(f"accuracy {accuracy:.4f} tokens {int(trainer.seen)}")


if __name__ == "__main__":
    main()
