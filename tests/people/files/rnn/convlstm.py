"""ConvLSTM for video prediction (module only)."""
import torch
from torch import nn


class ConvLSTMCell(nn.Module):
    """One step of a convolutional LSTM.

    Parameters
    ----------
    input_dim: int
        Number of channels of the input tensor.
    hidden_dim: int
        Number of channels of the hidden state.
    kernel_size: int
        Size of the convolutional kernel.
    """

    def __init__(self, input_dim, hidden_dim, kernel_size, bias=True):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.conv = nn.Conv2d(input_dim + hidden_dim, 4 * hidden_dim, kernel_size, padding=kernel_size // 2, bias=bias)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = torch.chunk(self.conv(torch.cat([x, h], dim=1)), 4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def init_state(self, batch, size, device):
        h, w = size
        return (torch.zeros(batch, self.hidden_dim, h, w, device=device), torch.zeros(batch, self.hidden_dim, h, w, device=device))


class ConvLSTM(nn.Module):
    """Input: (batch, time, channels, height, width)."""

    def __init__(self, input_dim=1, hidden_dims=(8, 8), kernel_size=3, out_dim=1):
        super().__init__()
        dims = [input_dim, *hidden_dims]
        self.cells = nn.ModuleList(ConvLSTMCell(a, b, kernel_size) for a, b in zip(dims, dims[1:]))
        self.head = nn.Conv2d(dims[-1], out_dim, 1)

    def forward(self, frames, states=None):
        b, t, _, h, w = frames.shape
        if states is None:
            states = [cell.init_state(b, (h, w), frames.device) for cell in self.cells]
        outputs = []
        for step in range(t):
            x = frames[:, step]
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, states[k])
                x = states[k][0]
            outputs.append(self.head(x))
        return torch.stack(outputs, 1), states
