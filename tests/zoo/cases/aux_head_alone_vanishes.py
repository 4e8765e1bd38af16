"""Mean over a dense map with a tiny weight: the auxiliary head alone gets no gradient without a scale."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.main, self.aux = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        h = torch.relu(self.stem(x))
        return self.main(h).mean((2, 3)), nn.functional.interpolate(
            self.aux(h), scale_factor=8, mode="bilinear"
        )


def model():
    torch.manual_seed(0)
    return Net()


def batch():
    torch.manual_seed(1)
    return torch.randn(2, 3, 48, 48), torch.randint(0, 4, (2,)), torch.randint(0, 4, (2, 192, 192))


def loss(m, b):
    y, aux = m(b[0])
    return 1e-2 * nn.functional.cross_entropy(y, b[1]) + 1e-7 * nn.functional.cross_entropy(aux.float(), b[2])


TRUTH = {
    "kind": "grad-underflow",
    "dtype": "float16",
    "layers": ["aux"],
    "op": "_to_copy,convolution_backward,upsample_bilinear2d_backward",
    "fp32_fix": [],
    "scaler": "needs-scale>=2**12",
    "source": "open-mmlab/mmsegmentation auxiliary head fp16; NVIDIA/apex#654",
}
