"""How weights are kept in FP32, in the terms of whoever holds them: a script, or a framework that made them half."""

from ampcheck.diagnose.rules.loop_state import device_of, first_place
from ampcheck.diagnose.rules.makers import module_cast
from ampcheck.values.loop import Kind
from ampcheck.values.report import Report

#: By a part of the path of the file that calls the model: what its user writes instead.
_BY_PATH = {
    "lightning/pytorch/": 'Trainer(precision="{short}-mixed")  # instead of "{short}-true": weights stay in FP32',
    "pytorch_lightning/": 'Trainer(precision="{short}-mixed")  # instead of "{short}-true": weights stay in FP32',
    "transformers/trainer": "# where the model is made or loaded: in FP32; {name}=True casts what may be cast",
}
_FABRIC = 'Fabric(precision="{short}-mixed")  # instead of "{short}-true": weights stay in FP32'
_PLAIN = "without .half(), .bfloat16() or dtype=; autocast casts what may be cast"


def weights_in_fp32(report: Report) -> tuple[str, ...]:
    """Return the lines that keep trained weights in FP32."""
    fabric = any(module.kind == "_FabricModule" for module in report.low.modules)
    path = first_place(report, "model")[0].replace("\\", "/")
    line = next((held for part, held in _BY_PATH.items() if part in path), _FABRIC if fabric else "")
    if not line:
        cast = module_cast(report)
        where = (
            f"{cast.location}, where the module is cast" if cast is not None else "where the model is made"
        )
        return (f"# {where}: {_PLAIN}", *under_autocast(report))
    return (line.format(short="16" if report.precision == "fp16" else "bf16", name=report.precision),)


def under_autocast(report: Report) -> tuple[str, ...]:
    """Return what FP32 weights need in a loop that has no autocast yet."""
    loop = report.loop
    if loop is None or any(event.kind is Kind.AUTOCAST for _, event in loop.sequence(1)):
        return ()
    return (
        f"# and run every forward and the loss under torch.autocast({device_of(report)}, dtype=torch.{report.dtype})",
    )
