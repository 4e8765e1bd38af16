"""Encoder, attention decoder, two optimizers, teacher forcing."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOS_token, EOS_token, MAX_LENGTH, VOCAB = 0, 1, 10, 30


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size, dropout_p=0.1):
        super(EncoderRNN, self).__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        return self.gru(self.dropout(self.embedding(input)))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super(BahdanauAttention, self).__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys.to(weights.dtype)), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size, dropout_p=0.1):
        super(AttnDecoderRNN, self).__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        inp = torch.full((encoder_outputs.size(0), 1), SOS_token, dtype=torch.long, device=encoder_outputs.device)
        hidden, outputs = encoder_hidden, []
        for i in range(MAX_LENGTH):
            emb = self.dropout(self.embedding(inp))
            context, _ = self.attention(hidden.permute(1, 0, 2), encoder_outputs)
            out, hidden = self.gru(torch.cat((emb, context.to(emb.dtype)), dim=2), hidden)
            out = self.out(out)
            outputs.append(out)
            inp = target_tensor[:, i].unsqueeze(1) if target_tensor is not None else out.argmax(-1).detach()
        return F.log_softmax(torch.cat(outputs, dim=1).float(), dim=-1), hidden


def make_pair(n):
    x = torch.randint(2, VOCAB, (n, MAX_LENGTH), device=device)
    return x, x.flip(1)


def train_epoch(n_batches, encoder, decoder, enc_opt, dec_opt, criterion):
    total = 0
    for _ in range(n_batches):
        x, y = make_pair(16)
        enc_opt.zero_grad()
        dec_opt.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            outputs, hidden = encoder(x)
            teacher = y if random.random() < 0.5 else None
            decoded, _ = decoder(outputs, hidden, teacher)
            loss = criterion(decoded.view(-1, VOCAB), y.reshape(-1))
        loss.backward()
        enc_opt.step()
        dec_opt.step()
        total += loss.item()
    return total / n_batches


def main():
    hidden_size = 32
    encoder = EncoderRNN(VOCAB, hidden_size).to(device)
    decoder = AttnDecoderRNN(hidden_size, VOCAB).to(device)
    enc_opt, dec_opt = optim.Adam(encoder.parameters(), lr=1e-3), optim.Adam(decoder.parameters(), lr=1e-3)
    criterion = nn.NLLLoss()
    for epoch in range(1, 4):
        print(epoch, train_epoch(8, encoder, decoder, enc_opt, dec_opt, criterion))


if __name__ == "__main__":
    main()
