import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConvolution(nn.Module):
    """Simple GCN layer, similar to https://arxiv.org/abs/1609.02907"""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(in_features, out_features))
        self.bias = nn.Parameter(torch.FloatTensor(out_features)) if bias else None
        stdv = 1.0 / self.weight.size(1) ** 0.5
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias if self.bias is not None else output


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)


def load_data(n=500, f=100, c=7):
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(0, c, (n,), generator=g)
    features = F.one_hot(labels, f).float() + torch.rand(n, f, generator=g)
    features = features / features.sum(1, keepdim=True)
    edges = torch.randint(0, n, (2, 2000), generator=g)
    adj = torch.zeros(n, n)
    adj[edges[0], edges[1]] = 1
    adj = ((adj + adj.t()) > 0).float() + torch.eye(n)
    adj = adj / adj.sum(1, keepdim=True)
    return adj.to_sparse(), features, labels, torch.arange(0, 140), torch.arange(200, 500)


def accuracy(output, labels):
    return (output.max(1)[1] == labels).double().mean()


adj, features, labels, idx_train, idx_val = load_data()
model = GCN(nfeat=features.shape[1], nhid=16, nclass=int(labels.max()) + 1, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
if torch.cuda.is_available():
    model.cuda()
    features, adj, labels = features.cuda(), adj.cuda(), labels.cuda()
    idx_train, idx_val = idx_train.cuda(), idx_val.cuda()

for epoch in range(200):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = accuracy(model(features, adj)[idx_val], labels[idx_val])
    print('Epoch: {:04d}'.format(epoch + 1), 'loss_train: {:.4f}'.format(loss_train.item()), 'acc_val: {:.4f}'.format(acc.item()))
