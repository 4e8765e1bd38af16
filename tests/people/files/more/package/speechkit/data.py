import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class FakeSpeech(Dataset):
    def __init__(self, n=400, n_mels=40, vocab=30):
        g = torch.Generator().manual_seed(0)
        self.items = []
        for _ in range(n):
            t = int(torch.randint(120, 240, (1,), generator=g))
            self.items.append((torch.randn(t, n_mels, generator=g), torch.randint(1, vocab, (t // 16,), generator=g)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    mels, labels = zip(*items)
    return (pad_sequence(mels, batch_first=True), torch.tensor([len(m) for m in mels]),
            pad_sequence(labels, batch_first=True), torch.tensor([len(x) for x in labels]))
