# Character RNN with truncated back-propagation through time
import torch
import torch.nn as nn

TEXT = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 30
chars = sorted(list(set(TEXT)))
encoded = torch.tensor([chars.index(c) for c in TEXT])
BATCH, BPTT, HIDDEN, EPOCHS = 8, 20, 48, 3


class CharRNN(nn.Module):
    def __init__(self, n_chars, n_hidden=HIDDEN, n_layers=2):
        super().__init__()
        self.n_layers, self.n_hidden = n_layers, n_hidden
        self.embed = nn.Embedding(n_chars, n_hidden)
        self.rnn = nn.GRU(n_hidden, n_hidden, n_layers, batch_first=True)
        self.decoder = nn.Linear(n_hidden, n_chars)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.embed(x), hidden)
        return self.decoder(out), hidden

    def init_hidden(self, batch):
        return torch.zeros(self.n_layers, batch, self.n_hidden, device="cuda")


def batchify(data, bsz):
    n = len(data) // bsz
    return data[: n * bsz].view(bsz, n)


def train():
    data = batchify(encoded, BATCH).cuda()
    model = CharRNN(len(chars)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(EPOCHS):
        hidden = model.init_hidden(BATCH)
        for i in range(0, data.size(1) - 1 - BPTT, BPTT):
            x, y = data[:, i:i + BPTT], data[:, i + 1:i + 1 + BPTT]
            hidden = hidden.detach()
            optimizer.zero_grad()
            with torch.cuda.amp.autocast():
                logits, hidden = model(x, hidden)
                loss = criterion(logits.reshape(-1, len(chars)), y.reshape(-1))
            scaler.scale(loss).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
        print("epoch", epoch, "loss", loss.item(), "grad norm", float(norm))


if __name__ == "__main__":
    train()
