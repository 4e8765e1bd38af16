"""What a user can change where numbers go wrong inside of a library: the module that it runs, from their own code."""

from dataclasses import replace

from ampcheck.diagnose.rules.loop_state import device_of, loop_of
from ampcheck.values.findings import Finding, Severity
from ampcheck.values.loop import Kind
from ampcheck.values.report import Report

#: Packages that modules are taken from, as the paths of their files begin.
LIBRARIES = frozenset(
    """accelerate diffusers efficientnet_pytorch einops fairseq keras lightning lightning_fabric mamba_ssm mmcv mmdet
    mmseg monai open_clip peft pytorch_lightning segmentation_models_pytorch sentence_transformers speechbrain timm
    torch_geometric torchaudio torchvision transformers ultralytics vit_pytorch x_transformers""".split()
)
#: Rules about numbers that a module computes: FP32 inside of it is what heals them.
_OF_NUMBERS = frozenset({"AMP101", "AMP102", "AMP103", "AMP202", "AMP501", "AMP502"})


def in_installed(file: str) -> bool:
    """Tell whether a line is a library's that nobody edits."""
    return file.partition("/")[0] in LIBRARIES


def own_line(report: Report) -> str:
    """Return "file:line" of the user's code that calls the model, or '' where that is not known."""
    calls = (e for _, e in loop_of(report).sequence(1) if e.kind is Kind.FORWARD and e.thing)
    places = (event.caller or event.location for event in calls)
    return next((place for place in places if place and not in_installed(place)), "")


def overridden(report: Report, finding: Finding) -> Finding:
    """Return a finding of a script with the lines that keep a library's module in FP32 from outside."""
    origin = finding.origin
    numbers = finding.code in _OF_NUMBERS and finding.severity is not Severity.INFO
    if finding.fix or not numbers or origin is None or report.loop is None:
        return finding
    if not origin.module or not in_installed(origin.file):
        return finding
    holder, _, path = origin.module.partition(".")
    lines = (
        f"part = {holder}" + (f'.get_submodule("{path}")' if path else "") + "  # once, before training",
        f"inner = torch.autocast({device_of(report)}, enabled=False)(part.forward)",
        "wide = lambda x: x.float() if torch.is_tensor(x) and x.is_floating_point() else x",
        "part.forward = lambda *a, inner=inner, **k: inner(*map(wide, a), **{n: wide(x) for n, x in k.items()})",
    )
    return replace(finding, fix=lines)
