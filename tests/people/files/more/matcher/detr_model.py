"""A minimal DETR (after the paper's appendix) with its matcher."""
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import nn
from torchvision.models import resnet50


class MLP(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, num_layers):
        super().__init__()
        h = [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(n, k) for n, k in zip([input_dim] + h, h + [output_dim]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(x)) if i < len(self.layers) - 1 else layer(x)
        return x


class DETR(nn.Module):
    def __init__(self, num_classes, hidden_dim=128, nheads=4, num_encoder_layers=2, num_decoder_layers=2, num_queries=20):
        super().__init__()
        self.backbone = resnet50()
        del self.backbone.fc
        self.conv = nn.Conv2d(2048, hidden_dim, 1)
        self.transformer = nn.Transformer(hidden_dim, nheads, num_encoder_layers, num_decoder_layers, batch_first=True)
        self.linear_class = nn.Linear(hidden_dim, num_classes + 1)
        self.linear_bbox = MLP(hidden_dim, hidden_dim, 4, 3)
        self.query_pos = nn.Parameter(torch.rand(num_queries, hidden_dim))
        self.row_embed = nn.Parameter(torch.rand(50, hidden_dim // 2))
        self.col_embed = nn.Parameter(torch.rand(50, hidden_dim // 2))

    def forward(self, inputs):
        b = self.backbone
        x = b.maxpool(b.relu(b.bn1(b.conv1(inputs))))
        x = b.layer4(b.layer3(b.layer2(b.layer1(x))))
        h = self.conv(x)
        H, W = h.shape[-2:]
        pos = torch.cat([self.col_embed[:W].unsqueeze(0).repeat(H, 1, 1), self.row_embed[:H].unsqueeze(1).repeat(1, W, 1)], -1).flatten(0, 1)
        h = self.transformer(pos + 0.1 * h.flatten(2).transpose(1, 2), self.query_pos.expand(h.size(0), -1, -1))
        return {'pred_logits': self.linear_class(h), 'pred_boxes': self.linear_bbox(h).sigmoid()}


class HungarianMatcher(nn.Module):
    def __init__(self, cost_class: float = 1, cost_bbox: float = 1):
        super().__init__()
        self.cost_class, self.cost_bbox = cost_class, cost_bbox

    @torch.no_grad()
    def forward(self, outputs, targets):
        bs, nq = outputs["pred_logits"].shape[:2]
        prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
        box = outputs["pred_boxes"].flatten(0, 1)
        ids = torch.cat([v["labels"] for v in targets])
        tb = torch.cat([v["boxes"] for v in targets])
        C = (self.cost_bbox * torch.cdist(box, tb, p=1) - self.cost_class * prob[:, ids]).view(bs, nq, -1).cpu()
        sizes = [len(v["boxes"]) for v in targets]
        return [linear_sum_assignment(c[i]) for i, c in enumerate(C.split(sizes, -1))]


class SetCriterion(nn.Module):
    def __init__(self, num_classes, matcher, eos_coef=0.1):
        super().__init__()
        self.num_classes, self.matcher = num_classes, matcher
        w = torch.ones(num_classes + 1)
        w[-1] = eos_coef
        self.register_buffer('empty_weight', w)

    def forward(self, outputs, targets):
        idx = self.matcher(outputs, targets)
        target = torch.full(outputs["pred_logits"].shape[:2], self.num_classes, dtype=torch.int64, device=outputs["pred_logits"].device)
        l1 = 0
        for b, (src, tgt) in enumerate(idx):
            target[b, src] = targets[b]["labels"][tgt]
            l1 = l1 + (outputs["pred_boxes"][b, src] - targets[b]["boxes"][tgt]).abs().sum()
        ce = F.cross_entropy(outputs["pred_logits"].transpose(1, 2), target, self.empty_weight)
        return ce + l1


def build(args):
    return DETR(args.num_classes, args.hidden_dim), SetCriterion(args.num_classes, HungarianMatcher())
