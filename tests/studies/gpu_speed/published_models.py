"""The models of published measurements, rebuilt from public libraries or from their published description."""

import itertools

import torch
from torch import nn

from ampcheck.targets.spec import Target

FACTORS, USERS, ITEMS = 64, 138493, 26744  # NeuMF on ML-20m, as the papers give it
EFFICIENTNET_SIDE = {"b0": 224, "b4": 380}


def _images(model, size, side=224, classes=1000, lr=0.1, optimizer=True):
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    make = (lambda m: torch.optim.SGD(m.parameters(), lr, momentum=0.9)) if optimizer else _none
    batch = (torch.empty(size, 3, side, side), torch.zeros(size, dtype=torch.long))
    return Target("images", model, [batch], loss, make)


def _none(model):
    return torch.optim.SGD([next(model.parameters())], 0.0)


def _timm(name, **more):
    import timm

    return timm.create_model(name, **more)


class SSD(nn.Module):
    """SSD300 on ResNet-50 up to its third stage, with the strides and the added blocks that its paper describes."""

    def __init__(self, classes=81):
        super().__init__()
        import torchvision

        body = torchvision.models.resnet50()
        for block in body.layer3:
            for layer in (block.conv1, block.conv2, *(block.downsample or [])):
                if isinstance(layer, nn.Conv2d):
                    layer.stride = (1, 1)
        self.body = nn.Sequential(*list(body.children())[:7])
        sizes = ((1024, 256, 512), (512, 256, 512), (512, 128, 256), (256, 128, 256), (256, 128, 256))
        pads = (1, 1, 1, 0, 0)
        self.more = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(True),
                nn.Conv2d(b, c, 3, 2 if p else 1, p, bias=False), nn.BatchNorm2d(c), nn.ReLU(True),
            )
            for (a, b, c), p in zip(sizes, pads, strict=True)
        )  # fmt: skip
        channels, boxes = (1024, 512, 512, 256, 256, 256), (4, 6, 6, 6, 4, 4)
        self.places = nn.ModuleList(
            nn.Conv2d(c, 4 * n, 3, padding=1) for c, n in zip(channels, boxes, strict=True)
        )
        self.kinds = nn.ModuleList(
            nn.Conv2d(c, classes * n, 3, padding=1) for c, n in zip(channels, boxes, strict=True)
        )
        self.classes = classes

    def forward(self, x):
        maps = [self.body(x)]
        for block in self.more:
            maps.append(block(maps[-1]))
        places = [head(x).reshape(x.shape[0], 4, -1) for head, x in zip(self.places, maps, strict=True)]
        kinds = [
            head(x).reshape(x.shape[0], self.classes, -1) for head, x in zip(self.kinds, maps, strict=True)
        ]
        return torch.cat(places, 2), torch.cat(kinds, 2)


def _ssd(size):
    def loss(model, batch):
        places, kinds = model(batch[0])
        return nn.functional.smooth_l1_loss(places.float(), torch.zeros_like(places.float())) + (
            nn.functional.cross_entropy(
                kinds.float(), torch.zeros(kinds.shape[0], kinds.shape[2], dtype=torch.long)
            )
        )

    batch = (torch.empty(size, 3, 300, 300),)
    return Target("ssd", SSD(), [batch], loss, lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9))


class NeuMF(nn.Module):
    """Neural matrix factorisation with 64 factors and layers of 256, 256, 128 and 64."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, FACTORS + 128), nn.Embedding(ITEMS, FACTORS + 128)
        self.layers = nn.Sequential(
            nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5),
        )  # fmt: skip
        self.out = nn.Linear(FACTORS + 64, 1)

    def forward(self, users, items):
        user, item = self.user(users), self.item(items)
        mixed = user[:, :FACTORS] * item[:, :FACTORS]
        deep = self.layers(torch.cat((user[:, FACTORS:], item[:, FACTORS:]), 1))
        return self.out(torch.cat((mixed, deep), 1))


def _ncf(size):
    def loss(model, batch):
        if not model.training:
            return model(*batch[:2]).sigmoid()
        return nn.functional.binary_cross_entropy_with_logits(model(*batch[:2]).squeeze(1).float(), batch[2])

    numbers = torch.zeros(size, dtype=torch.long)
    return Target(
        "ncf",
        NeuMF(),
        [(numbers, numbers, torch.zeros(size))],
        loss,
        lambda m: torch.optim.Adam(m.parameters()),
    )


class UNet(nn.Module):
    """nnU-Net's network in two or three dimensions: two convolutions a level, instance norm, deep supervision."""

    def __init__(self, dims, channels, classes, widths):
        super().__init__()
        conv, up = (nn.Conv2d, nn.ConvTranspose2d) if dims == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        norm = nn.InstanceNorm2d if dims == 2 else nn.InstanceNorm3d

        def block(a, b, stride=1):
            return nn.Sequential(
                conv(a, b, 3, stride, 1, bias=False), norm(b, affine=True), nn.LeakyReLU(0.01, True),
                conv(b, b, 3, 1, 1, bias=False), norm(b, affine=True), nn.LeakyReLU(0.01, True),
            )  # fmt: skip

        pairs = list(itertools.pairwise(widths))
        self.first = block(channels, widths[0])
        self.down = nn.ModuleList(block(a, b, 2) for a, b in pairs)
        self.rise = nn.ModuleList(up(b, a, 2, 2) for a, b in reversed(pairs))
        self.join = nn.ModuleList(block(2 * a, a) for a, _ in reversed(pairs))
        self.out = nn.ModuleList(conv(width, classes, 1) for width in widths[:3])

    def forward(self, x):
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(kept[-1]))
        x, seen = kept.pop(), []
        for rise, join in zip(self.rise, self.join, strict=True):
            x = join(torch.cat((rise(x), kept.pop()), 1))
            seen.append(x)
        return [
            head(x)
            for head, x in zip(self.out, reversed(seen[-3:] if self.training else seen[-1:]), strict=False)
        ]


def _unet(dims, size):
    three = dims == 3
    side = (128, 128, 128) if three else (192, 160)
    widths = (32, 64, 128, 256, 320, 320) if three else (32, 64, 128, 256, 512, 512)
    if not three:
        widths = widths[:6]

    def loss(model, batch):
        found = 0
        for logits in model(batch[0]):
            target = torch.zeros(logits.shape[0], *logits.shape[2:], dtype=torch.long)
            share = logits.float().softmax(1)
            found = found + nn.functional.cross_entropy(logits.float(), target) + share.mean()
        return found

    model = UNet(dims, 4, 4, widths)
    return Target(
        "unet", model, [(torch.empty(size, 4, *side),)], loss, lambda m: torch.optim.Adam(m.parameters())
    )


def _bert(name, size, length):
    from transformers import BertConfig, BertForQuestionAnswering

    sizes = {"base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}[name]
    config = BertConfig(
        hidden_size=sizes[0], num_hidden_layers=sizes[1], num_attention_heads=sizes[2], intermediate_size=sizes[3],
        attn_implementation="eager",
    )  # fmt: skip

    def loss(model, batch):
        out = model(input_ids=batch[0], start_positions=batch[1], end_positions=batch[1])
        return out.loss if model.training else out.start_logits.sum()

    batch = (torch.zeros(size, length, dtype=torch.long), torch.zeros(size, dtype=torch.long))
    return Target(
        "bert", BertForQuestionAnswering(config), [batch], loss, lambda m: torch.optim.AdamW(m.parameters())
    )


def _vision(name, size, optimizer):
    import torchvision

    return _images(getattr(torchvision.models, name)(), size, optimizer=optimizer)


def build(model, size, optimizer=True):
    """Return the target of a published model at a batch size."""
    kind = model[-2:]
    if model.startswith("efficientnet"):
        # The wide squeeze-and-excitation layers take their width from the expanded channels.
        more = {"se_layer": _wide_se()} if "widese" in model else {}
        return _images(_timm(f"efficientnet_{kind}", **more), size, EFFICIENTNET_SIDE[kind])
    if model.startswith("nnUNet"):
        return _unet(3 if "3" in model else 2, size)
    if "bert" in model.lower():
        return _bert("base" if "base" in model else "large", size, 384)
    zoo = {"resnext101-32x4d": "resnext101_32x4d", "se-resnext101-32x4d": "seresnext101_32x4d"}
    if model in zoo:
        return _images(_timm(zoo[model]), size)
    known = {"ssd": _ssd, "ncf": _ncf}
    if model.lower() in known:
        return known[model.lower()](size)
    return _vision("resnet50" if model.startswith("resnet50") else model, size, optimizer)


def _wide_se():
    from functools import partial

    from timm.models._efficientnet_blocks import SqueezeExcite

    return partial(SqueezeExcite, rd_ratio=1.0)
