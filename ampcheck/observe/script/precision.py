"""Which precision and loss scale a recorded step ran in."""

from collections.abc import Mapping

from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Phase, Site, Trace


def precision_of(trace: Trace, autocast: str) -> str:
    """Return what a step ran in: what it asked for, even if some of it is in another: RNNs under cuDNN are fp16."""
    dtypes = {site.dtype for site in trace.sites if site.op and site.phase is not Phase.STATE}
    if autocast in dtypes:
        dtypes = {autocast}
    return "fp16" if "float16" in dtypes else "bf16" if "bfloat16" in dtypes else "fp32"


def without_scale(sites: Mapping[Site, TensorStats], log2_scale: int) -> dict[Site, TensorStats]:
    """Return FP32's statistics as they would be without a scale."""
    return {site: stats.scaled(-log2_scale) if site.scaled else stats for site, stats in sites.items()}
