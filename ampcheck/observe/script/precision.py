"""Which precision a recorded step ran in."""

from ampcheck.values.trace import Phase, Trace


def precision_of(trace: Trace, autocast: str) -> str:
    """Return what a step ran in: what it asked for, even if some of it is in another: RNNs under cuDNN are fp16."""
    dtypes = {site.dtype for site in trace.sites if site.op and site.phase is not Phase.STATE}
    if autocast in dtypes:
        dtypes = {autocast}
    return "fp16" if "float16" in dtypes else "bf16" if "bfloat16" in dtypes else "fp32"
