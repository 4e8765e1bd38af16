"""Keep-in-FP32 lists of transformers, found again: realistic numbers planted where the lists say, and what is named.

python tests/studies/answer_keys.py    writes the table between the marks of reports/inference.md
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ampcheck.run.audit import audit
from ampcheck.targets import Options, load
from ampcheck.targets.seeding import seeded
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings

#: Mixture-of-experts types that build small, whose routers have a correction bias.
ROUTERS = "glm4_moe glm4_moe_lite exaone_moe solar_open axk1 mimo_v2_flash hy_v3 kolibri1 afmoe".split()
_BIASES = ("e_score_correction_bias", "expert_bias")


@dataclass(frozen=True, slots=True)
class Row:
    """One model type, with a failure planted or without."""

    name: str
    planted: str
    listed: str  #: what transformers keeps
    report: Report
    model: torch.nn.Module

    @property
    def named(self) -> str:
        """Return the module that the first error names, '' where there is none."""
        errors = [finding for finding in self.report.findings if finding.severity == "error"]
        return errors[0].origin.module if errors and errors[0].origin is not None else ""


def audited(name: str, precision: str, plant: str) -> Row:
    """Return what an audit says of a model of a type."""
    target = load(f"transformers:{name}", Options(small=True))
    batches = [{key: value for key, value in batch.items() if key != "labels"} for batch in target.batches]
    if name == "t5":
        batches = [batch | {"decoder_input_ids": batch["input_ids"]} for batch in batches]
    model = target.model
    torch.manual_seed(0)
    with torch.no_grad():
        for full, tensor in (*model.named_parameters(), *model.named_buffers()):
            _plant(full, tensor, plant)
    settings = Settings(precision=precision, mode="infer", cast="weights", budget=20)
    with seeded(0):
        report = audit(replace(target, batches=batches), settings)
    kept = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    listed = next((one for one in _BIASES if one in kept), next(iter(sorted(kept)), ""))
    return Row(name, plant, listed, report, model)


def _plant(name: str, tensor: torch.Tensor, plant: str) -> None:
    """Give a tensor numbers as trained models have them: biases around 16, and experts that matter."""
    if "embed_tokens" in name:
        tensor.copy_(tensor.bfloat16())
    if ".experts." in name:
        tensor.mul_(30)
    if plant == "bias" and name.endswith(_BIASES):
        tensor.copy_(16 + 0.05 * torch.randn_like(tensor))
    if plant == "wo" and name.endswith("wo.weight"):
        tensor[5] = 4e4


def rows() -> Iterator[Row]:
    """Yield every type with the failure planted, then types in which the list is not needed."""
    for name in ROUTERS:
        yield audited(name, "bf16", "bias")
    yield audited("t5", "fp16", "wo")
    for name in ("t5", "glm4_moe"):
        yield audited(name, "fp16", "")


def table(found: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = ["| type | planted | in the list | named | error, cast → kept |", "|---|---|---|---|---|"]
    for row in found:
        outcomes = row.report.outcomes
        before, after = outcomes["settled"].error, outcomes.get("planned", outcomes["settled"]).error
        named = f"`{row.named}`" if row.named else "not needed here"
        numbers = f"{before:.2%} → {after:.2%}" if row.named else f"{before:.2%}"
        lines.append(f"| {row.name} | {row.planted or 'nothing'} | {row.listed} | {named} | {numbers} |")
    return "\n".join(lines)
