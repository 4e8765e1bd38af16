"""Dry runs: the dtypes, elements and casts of the real step, without its values, memory or a claim about either."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import answer
from torch._subclasses.fake_tensor import FakeTensor

from ampcheck.diagnose.rules import RULES, WITHOUT_VALUES
from ampcheck.diagnose.tables import dtype_rows
from ampcheck.errors import AmpcheckError
from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.model.faking import fake_tensors
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import Step, run
from ampcheck.renderers import RENDERERS
from ampcheck.run.dry import dry_audit
from ampcheck.saved.report_json import from_json, to_json
from ampcheck.targets import Options, load
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase
from ampcheck.values.verdict import Health

HEADER = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
TARGETS = {
    "convolutions": """
def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 4))
def batch():
    return torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2,))
def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
""",
    "attention": """
def model():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(nn.Embedding(100, 32), nn.TransformerEncoder(layer, 2), nn.LayerNorm(32), nn.Linear(32, 100))
def batch():
    return torch.randint(0, 100, (2, 16))
def loss(model, batch):
    return F.cross_entropy(model(batch).transpose(1, 2), batch)
""",
    "recurrent": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 1)
    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])
model, batch = Net, lambda: torch.randn(2, 5, 8)
def loss(model, batch):
    return model(batch).float().pow(2).mean()
""",
    "tied weights, an island of FP32, an eps": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, x):
        y = torch.relu(self.head(self.embed(x)))
        return y.float().softmax(-1).half() + 1e-9
model, batch = Net, lambda: torch.randint(0, 50, (2, 7))
def loss(model, batch):
    return model(batch).float().mean()
""",
    "stored in half precision": """
def model():
    return nn.Linear(8, 8).bfloat16()
def batch():
    return torch.randn(4, 8)
def loss(model, batch):
    return model(batch).pow(2).sum()
""",
    "checkpointed": """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant=False))
model, batch = Net, lambda: torch.randn(4, 8)
def loss(model, batch):
    return model(batch).mean()
""",
}


def target(folder, text):
    path = folder / "target.py"
    path.write_text(HEADER + text)
    return str(path)


def real(spec, options, settings):
    built = load(spec, options)
    with built.active():
        recorder = Recorder(built.model, execute=execute)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[settings.precision]
        run(Step(built.model, built.batch(0), built.loss), recorder, dtype, settings.log2_scale or 0)
    return recorder.trace(recorder.fetch())


def placed(site):
    """Return a site with the lines of this file, from which the step was started here, taken for nobody's."""
    return site._replace(file="", line=0) if site.file.endswith(Path(__file__).name) else site


def assert_same_flow(spec, options, settings):
    dry, wet = dry_audit(spec, options, settings).low, real(spec, options, settings)
    held = {placed(s): stats.numel for s, stats in wet.sites.items() if s.op or s.phase is Phase.STATE}
    assert list(dry.elements.items()) == list(held.items())
    casts = {placed(cast): number for cast, number in wet.casts.items()}
    assert list(dry.casts.items()) == list(casts.items())
    assert dry.constants == wet.constants
    assert [module.path for module in dry.modules] == [module.path for module in wet.modules]
    assert len(dry.elements) > 5
    assert not dry.sites


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", TARGETS)
def test_dtypes_elements_and_casts_are_those_of_the_real_step(tmp_path, name, precision):
    settings = Settings(precision, 16 if precision == "fp16" else None, 1)
    assert_same_flow(target(tmp_path, TARGETS[name]), Options(), settings)


def takes_grouped_products_in_fp32():
    rows, experts, ends = torch.empty(6, 8), torch.empty(2, 8, 4), torch.tensor([3, 6], dtype=torch.int32)
    try:
        torch._grouped_mm(rows.to("meta"), experts.to("meta"), offs=ends.to("meta"))
    except RuntimeError:
        return False
    return True


MIXTRAL = pytest.param(
    "mixtral",
    marks=pytest.mark.skipif(
        not takes_grouped_products_in_fp32(),
        reason="before 2.15 torch's grouped products take no FP32 without values",
    ),
)


@pytest.mark.parametrize("name", ["llama", "t5", MIXTRAL, "whisper", "mamba"])
def test_so_they_are_for_architectures_of_transformers(name):
    pytest.importorskip("transformers")
    assert_same_flow(f"transformers:{name}", Options(small=True), Settings("fp16", 16, 1))


def test_parameters_are_fake_however_small_and_what_the_code_reads_is_real():
    with fake_tensors() as faking:
        assert type(faking.like(torch.ones(2))) is FakeTensor
        assert type(torch.empty(1 << 20)) is FakeTensor
        rates = torch.linspace(0, 1, 5)
        assert rates.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
        mask = torch.arange(8)[None] <= torch.arange(8)[:, None]
        assert int(mask.sum()) == 36
        long = torch.arange(1 << 13)
        assert type(long[None] <= long[:, None]) is FakeTensor
        assert torch.arange(6).nonzero().shape == (5, 1)
    assert type(torch.empty(1 << 20)) is torch.Tensor


def test_the_verdict_claims_nothing_of_numbers(tmp_path):
    report = dry_audit(target(tmp_path, TARGETS["attention"]), Options(), Settings())
    health, sentence = answer(report)
    assert health is Health.UNKNOWN
    assert "no values, so" in sentence
    (asked,) = (text for text in report.not_audited if text.startswith("rules that need values"))
    assert report.not_audited[asked] == len(RULES) - len(WITHOUT_VALUES)
    assert not report.low.steps
    assert report.plan is None


def test_what_dtypes_tell_is_found(tmp_path):
    eps = dry_audit(
        target(tmp_path, TARGETS["tied weights, an island of FP32, an eps"]), Options(), Settings()
    )
    (lost,) = (finding for finding in eps.findings if finding.code == "AMP104")
    assert "no value was seen in a dry run" in lost.message
    stored = dry_audit(target(tmp_path, TARGETS["stored in half precision"]), Options(), Settings("bf16", 4))
    assert {finding.code for finding in stored.findings} >= {"AMP205", "AMP302"}


def test_a_step_that_autocast_stops_is_unsafe_and_one_that_never_runs_is_refused(tmp_path):
    banned = """
def model():
    return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
def batch():
    return torch.randn(2, 4), torch.rand(2, 1)
def loss(model, batch):
    return F.binary_cross_entropy(model(batch[0]), batch[1])
"""
    report = dry_audit(target(tmp_path, banned), Options(), Settings())
    assert answer(report)[0] is Health.UNSAFE
    assert [finding.code for finding in report.findings] == ["AMP301"]
    with pytest.raises(AmpcheckError, match="same reduction dim"):
        dry_audit(target(tmp_path, banned.replace("randn(2, 4)", "randn(2, 5)")), Options(), Settings())


def test_code_that_reads_a_value_is_told_to_leave_dry_out(tmp_path):
    reads = """
def model():
    return nn.Linear(4, 1)
def batch():
    return torch.randn(2, 4)
def loss(model, batch):
    out = model(batch).mean()
    return out if out.item() > 0 else -out
"""
    with pytest.raises(AmpcheckError) as raised:
        dry_audit(target(tmp_path, reads), Options(), Settings())
    assert "reads a computed value" in str(raised.value)
    assert raised.value.hint == "leave --dry out"
    with pytest.raises(AmpcheckError, match="expected a precision of fp16 or bf16"):
        dry_audit(target(tmp_path, reads), Options(), Settings("auto"))
    with pytest.raises(AmpcheckError, match="--dry and --weights"):
        dry_audit(target(tmp_path, reads), Options(weights=Path("w.pt")), Settings())


def test_it_is_saved_and_shown_in_every_format(tmp_path):
    report = dry_audit(target(tmp_path, TARGETS["convolutions"]), Options(), Settings())
    again = from_json(to_json(report))
    assert again.low.elements == report.low.elements
    assert again.dry
    for name in RENDERERS:
        assert RENDERERS[name](again) == RENDERERS[name](report)
    suite = RENDERERS["junit"](report)
    assert f'skipped="{1 + len(RULES) - len(WITHOUT_VALUES)}"' in suite
    assert suite.count("<skipped ") == 1 + len(RULES) - len(WITHOUT_VALUES)
    page = RENDERERS["html"](report)
    assert "No result was held" not in page
    assert set(re.findall(r'href="#([\w-]+)"', page)) <= set(re.findall(r'id="([\w-]+)"', page))
    shown = RENDERERS["terminal"](report)
    assert "no values, so" in " ".join(shown.split())
    rows = {row.op: row for row in dtype_rows(report)}
    assert rows["convolution"].forward_half == 2 * 8 * 6 * 6
    assert rows["convolution"].forward_wide == 0
    assert rows["_log_softmax"].forward_half + rows["_log_softmax"].forward_wide == 2 * 4


SEVEN_BILLION = """
import resource, sys
from torch import nn
import torch

class Block(nn.Module):
    def __init__(self, d=4096, heads=32, hidden=11008):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
        y = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))

def model():
    with torch.device("meta"):
        blocks = [Block() for _ in range(32)]
        return nn.Sequential(nn.Embedding(32000, 4096), *blocks, nn.RMSNorm(4096), nn.Linear(4096, 32000, bias=False))

def batch():
    return torch.randint(0, 32000, (1, 2048))

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch)[0], batch[0])
"""
#: What torch and its compiler take by themselves, and room for fakes; the weights alone would be 27 GB.
MOST_MEMORY = 2_000_000_000


def test_seven_billion_parameters_take_no_memory(tmp_path):
    path = tmp_path / "seven.py"
    path.write_text(SEVEN_BILLION)
    audit = (
        "import resource, sys; from ampcheck.run.dry import dry_audit; from ampcheck.values.settings import Settings; "
        "from ampcheck.targets import Options; report = dry_audit(sys.argv[1], Options(), Settings()); "
        "print(report.environment['parameters'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "
        "sum(n for site, n in report.low.elements.items() if site.slot.startswith('param[')))"
    )
    ran = subprocess.run([sys.executable, "-c", audit, str(path)], capture_output=True, text=True, check=True)
    parameters, memory, seen = ran.stdout.split()
    assert (
        int(parameters.replace(",", ""))
        == int(seen)
        == 2 * 32000 * 4096 + 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    )
    assert int(memory) < MOST_MEMORY
