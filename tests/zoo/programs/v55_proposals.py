"""A single-level region proposal network on synthetic scenes of 640 pixels."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
IMAGE, STRIDE, SIZES = 640, 64, (160, 400)


def make_scene(generator, count=4):
    """Images of one cell per stride, each with one small and one large object."""
    cells = IMAGE // STRIDE
    image = 0.1 * torch.randn(count, 2, cells, cells, generator=generator)
    boxes = []
    for i in range(count):
        found = []
        for channel, (low, high) in enumerate([(130, 190), (330, 480)]):
            w, h = (low + (high - low) * torch.rand(2, generator=generator)).tolist()
            x = (IMAGE - w) * torch.rand(1, generator=generator).item()
            y = (IMAGE - h) * torch.rand(1, generator=generator).item()
            found.append([x, y, x + w, y + h])
            x0, y0 = int(x // STRIDE), int(y // STRIDE)
            x1, y1 = int((x + w) // STRIDE) + 1, int((y + h) // STRIDE) + 1
            image[i, channel, y0:y1, x0:x1] += 1.0
        boxes.append(torch.tensor(found))
    return image.to(device), torch.stack(boxes).to(device)


class AnchorGenerator(nn.Module):
    def forward(self, feature):
        height, width = feature.shape[-2:]
        kind = dict(dtype=feature.dtype, device=feature.device)
        x = (torch.arange(width, **kind) + 0.5) * STRIDE
        y = (torch.arange(height, **kind) + 0.5) * STRIDE
        y, x = torch.meshgrid(y, x, indexing="ij")
        centre = torch.stack([x, y, x, y], -1)
        half = torch.tensor([[-s / 2, -s / 2, s / 2, s / 2] for s in SIZES], **kind)
        return (centre[:, :, None] + half).reshape(-1, 4)


class RPN(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(2, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
        )
        self.objectness = nn.Conv2d(width, len(SIZES), 1)
        self.deltas = nn.Conv2d(width, 4 * len(SIZES), 1)
        self.anchors = AnchorGenerator()

    def forward(self, image):
        feature = self.backbone(image)
        scores = self.objectness(feature).permute(0, 2, 3, 1).flatten(1)
        deltas = self.deltas(feature).permute(0, 2, 3, 1).reshape(len(image), -1, 4)
        return scores, deltas, self.anchors(feature)


def pairwise_iou(first, second):
    area1 = (first[:, 2] - first[:, 0]) * (first[:, 3] - first[:, 1])
    area2 = (second[:, 2] - second[:, 0]) * (second[:, 3] - second[:, 1])
    corner = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    size = (corner - torch.maximum(first[:, None, :2], second[None, :, :2])).clamp(min=0)
    inter = size[..., 0] * size[..., 1]
    return inter / (area1[:, None] + area2[None] - inter)


def encode(anchors, boxes):
    size = anchors[:, 2:] - anchors[:, :2]
    shift = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2 / size
    return torch.cat([shift, torch.log((boxes[:, 2:] - boxes[:, :2]) / size)], 1)


def rpn_loss(scores, deltas, anchors, boxes):
    score_loss = box_loss = 0.0
    for score, delta, box in zip(scores, deltas, boxes.to(anchors.dtype)):
        best, index = pairwise_iou(anchors, box).max(1)
        positive, negative = best > 0.4, best < 0.3
        score_loss = score_loss + F.binary_cross_entropy_with_logits(score[positive | negative], positive[positive | negative].float())
        if positive.any():
            target = encode(anchors[positive], box[index[positive]])
            box_loss = box_loss + F.smooth_l1_loss(delta[positive], target)
    return score_loss / len(scores), box_loss / len(scores)


def top_boxes(score, delta, anchors, size):
    """The boxes of the best anchor of a size."""
    pick = torch.arange(SIZES.index(size), len(anchors), len(SIZES), device=anchors.device)
    best = pick[score[pick].argmax()]
    anchor, move = anchors[best].float(), delta[best].float()
    side = anchor[2:] - anchor[:2]
    centre, side = (anchor[:2] + anchor[2:]) / 2 + move[:2] * side, side * move[2:].exp()
    return torch.cat([centre - side / 2, centre + side / 2]), score[best].sigmoid().item()


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    model = RPN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for step in range(60):
        image, boxes = make_scene(generator)
        with torch.autocast("cuda", dtype=torch.float16):
            score_loss, box_loss = rpn_loss(*model(image), boxes)
        optimizer.zero_grad()
        scaler.scale(score_loss + box_loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 19:
            print(f"step {step + 1} score {score_loss.item():.4f} box {float(box_loss):.4f}")

    image, boxes = make_scene(generator, 16)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        scores, deltas, anchors = model(image)
    for name, size, which in [("small", 160, 0), ("large", 400, 1)]:
        found = [top_boxes(s, d, anchors, size) for s, d in zip(scores.float(), deltas)]
        overlap = [pairwise_iou(b[None], t[None, which]).item() for (b, _), t in zip(found, boxes)]
        sure = sum(p for _, p in found) / len(found)
        print(f"{name} IoU {sum(overlap) / len(overlap):.3f} confidence {sure:.3f}")


if __name__ == "__main__":
    main()
