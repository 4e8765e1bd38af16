"""Frozen backbone, two dense heads (depth in millimetres, segmentation), one optimizer each."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
SEED = 3
STEPS = 160
BATCH = 6
SIZE = 16
DEPTH_MEAN, DEPTH_STD = 9000.0, 3000.0  # millimetres


def backbone():
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    )
    for p in net.parameters():
        p.requires_grad_(False)
    return net


class DenseHead(nn.Module):
    def __init__(self, cin, cout, width=16):
        super().__init__()
        self.proj = nn.Conv2d(cin, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.out = nn.Conv2d(width, cout, 1)

    def forward(self, feats):
        return self.out(F.relu(self.norm(self.proj(feats))))


def make_batch(n):
    low = torch.randn(n, 3, 4, 4)
    image = F.interpolate(low, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    mask = (image[:, 0] > 0.3).long() + (image[:, 1] > 0.3).long()
    depth_mm = DEPTH_MEAN + 4000.0 * torch.tanh(image[:, 2]) + 1000.0 * image[:, 0]
    image = image + 0.1 * torch.randn_like(image)
    return image.to(device), mask.to(device), depth_mm.to(device)


def predict_depth(head, feats):
    return head(feats).squeeze(1) * DEPTH_STD + DEPTH_MEAN


def depth_loss_fn(pred, depth_mm):
    # pixels behind the sensor's range are dropped, the rest summed per batch
    valid = depth_mm > 500.0
    return F.mse_loss(pred[valid], depth_mm[valid], reduction="sum")


torch.manual_seed(SEED)
encoder = backbone().to(device)
depth_head = DenseHead(16, 1).to(device)
seg_head = DenseHead(16, 3).to(device)

opt_depth = torch.optim.Adam(depth_head.parameters(), lr=1e-2)
opt_seg = torch.optim.SGD(seg_head.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")

for step in range(STEPS):
    image, mask, depth_mm = make_batch(BATCH)
    opt_depth.zero_grad()
    opt_seg.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        with torch.no_grad():
            feats = encoder(image)
        depth_loss = depth_loss_fn(predict_depth(depth_head, feats), depth_mm)
        seg_loss = F.cross_entropy(seg_head(feats), mask)

    scaler.scale(depth_loss).backward()
    scaler.scale(seg_loss).backward()
    scaler.step(opt_depth)
    scaler.step(opt_seg)
    scaler.update()
    if step % 20 == 0:
        rmse = (depth_loss.item() / mask.numel()) ** 0.5
        print(f"step {step:3d}  depth rmse {rmse:7.1f} mm  seg {seg_loss.item():.4f}")

image, mask, depth_mm = make_batch(32)
with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
    feats = encoder(image)
    seg_pred = seg_head(feats).argmax(1)
    depth_pred = predict_depth(depth_head, feats).float()
rmse = F.mse_loss(depth_pred, depth_mm).sqrt().item()
print(f"val depth rmse {rmse:.1f} mm  pixel accuracy {(seg_pred == mask).float().mean().item():.3f}")
