"""The loss scale: which scales the gradients allow, which scaler to build, and what it will do."""

from ampcheck.diagnose.scaling.advice import ScaleAdvice, advise_scale
from ampcheck.diagnose.scaling.gradients import gradient_tensors, maxima
from ampcheck.diagnose.scaling.groups import GroupAdvice, advise_groups
from ampcheck.diagnose.scaling.outlook import Outlook, outlook
from ampcheck.diagnose.scaling.rounding import estimated_error
from ampcheck.diagnose.scaling.scaler import (
    TORCH_DEFAULTS,
    ScalerRun,
    ScalerSettings,
    ScalerStep,
    replay,
    simulate,
)
from ampcheck.diagnose.scaling.window import ScaleLimits, ScaleWindow, scale_window

__all__ = [
    "TORCH_DEFAULTS",
    "GroupAdvice",
    "Outlook",
    "ScaleAdvice",
    "ScaleLimits",
    "ScaleWindow",
    "ScalerRun",
    "ScalerSettings",
    "ScalerStep",
    "advise_groups",
    "advise_scale",
    "estimated_error",
    "gradient_tensors",
    "maxima",
    "outlook",
    "replay",
    "scale_window",
    "simulate",
]
