# -*- coding: utf-8 -*-
"""DeepFM: A Factorization-Machine based Neural Network for CTR Prediction (Guo et al., 2017)"""
import os

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

HERE = os.path.dirname(os.path.abspath(__file__))
sparse = [f"C{i}" for i in range(1, 7)]
dense = [f"I{i}" for i in range(1, 5)]


class FM(nn.Module):
    def forward(self, x):  # B, F, K
        square_of_sum = torch.pow(torch.sum(x, dim=1, keepdim=True), 2)
        sum_of_square = torch.sum(x * x, dim=1, keepdim=True)
        return 0.5 * torch.sum(square_of_sum - sum_of_square, dim=2)


class DNN(nn.Module):
    def __init__(self, inputs_dim, hidden_units, dropout=0.0):
        super().__init__()
        layers, last = [], inputs_dim
        for h in hidden_units:
            layers += [nn.Linear(last, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Dropout(dropout)]
            last = h
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return self.net(x)


class DeepFM(nn.Module):
    def __init__(self, feature_sizes, n_dense, embedding_size=8, hidden=(64, 32), dropout=0.1):
        super().__init__()
        self.feature_sizes = feature_sizes
        self.emb1 = nn.ModuleList([nn.Embedding(n, 1) for n in feature_sizes])
        self.emb2 = nn.ModuleList([nn.Embedding(n, embedding_size) for n in feature_sizes])
        self.lin = nn.Linear(n_dense, 1)
        self.fm = FM()
        self.dnn = DNN(len(feature_sizes) * embedding_size + n_dense, hidden, dropout)
        self.out = nn.Linear(hidden[-1], 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, Xi, Xv):
        first = torch.cat([e(Xi[:, i]) for i, e in enumerate(self.emb1)], 1).sum(1, keepdim=True) + self.lin(Xv)
        embs = torch.stack([e(Xi[:, i]) for i, e in enumerate(self.emb2)], 1)
        logit = first + self.fm(embs) + self.out(self.dnn(torch.cat([embs.flatten(1), Xv], 1))) + self.bias
        return torch.sigmoid(logit).squeeze(1)


if __name__ == "__main__":
    data = pd.read_csv(os.path.join(HERE, "sample.csv"))
    data[sparse] = data[sparse].fillna("-1")
    data[dense] = data[dense].fillna(0)
    for f in sparse:
        data[f] = data[f].astype("category").cat.codes
    data[dense] = np.log1p(data[dense])
    feature_sizes = [int(data[f].nunique()) for f in sparse]
    ds = TensorDataset(torch.tensor(data[sparse].values, dtype=torch.long), torch.tensor(data[dense].values, dtype=torch.float32),
                       torch.tensor(data["label"].values, dtype=torch.float32))
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = DeepFM(feature_sizes, len(dense)).to(device)
    loss_fn = nn.BCELoss()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    for epoch in range(10):
        for xi, xv, y in DataLoader(ds, batch_size=64, shuffle=True):
            pred = model(xi.to(device), xv.to(device))
            loss = loss_fn(pred, y.to(device))
            optim.zero_grad()
            loss.backward()
            optim.step()
        print("epoch", epoch, "logloss", loss.item())
