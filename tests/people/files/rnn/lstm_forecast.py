"""LSTM forecasting of a time series."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class WindowDataset(Dataset):
    def __init__(self, series, lookback, horizon):
        self.series, self.lookback, self.horizon = series, lookback, horizon

    def __len__(self):
        return len(self.series) - self.lookback - self.horizon

    def __getitem__(self, i):
        x = self.series[i:i + self.lookback]
        y = self.series[i + self.lookback:i + self.lookback + self.horizon, 0]
        return torch.from_numpy(x), torch.from_numpy(y)


class LSTMForecaster(nn.Module):
    def __init__(self, n_features, hidden_size, num_layers, horizon, dropout=0.0):
        super().__init__()
        self.lstm = nn.LSTM(n_features, hidden_size, num_layers, batch_first=True, dropout=dropout)
        self.fc = nn.Linear(hidden_size, horizon)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lookback", type=int, default=20)
    parser.add_argument("--horizon", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--save", default="forecaster.pt")
    args = parser.parse_args()
    t = np.arange(1000, dtype=np.float32)
    series = np.stack([np.sin(t / 8), np.cos(t / 31), np.random.randn(1000).astype("float32") * 0.1], 1).astype("float32")
    loader = DataLoader(WindowDataset(series, args.lookback, args.horizon), args.batch, shuffle=True, drop_last=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LSTMForecaster(3, args.hidden, 2, args.horizon).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    scaler = torch.cuda.amp.GradScaler(enabled=device.type == "cuda")
    best = float("inf")
    for epoch in range(args.epochs):
        losses = []
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        mean = float(np.mean(losses))
        print(f"Epoch {epoch + 1}/{args.epochs} loss {mean:.5f}")
        if mean < best:
            best = mean
            torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
