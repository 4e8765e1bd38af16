"""Operations by what they do to dtypes."""

#: Operations that do nothing but change the dtype.
CASTS = frozenset({"_to_copy", "copy_", "to"})
#: Operations that limit numbers.
LIMITS = frozenset("clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ hardtanh hardtanh_".split())
#: Operations that leave little of nearly equal numbers.
DIFFERENCES = frozenset({"sub", "rsub"})
#: Operations whose inputs autocast casts itself, on their line.
_PRODUCTS = frozenset("mm addmm bmm baddbmm addbmm mv addmv dot vdot convolution _prelu_kernel".split())


def rounds_inputs(op: str) -> bool:
    """Tell whether autocast lowers the precision of an operation of this name, and so casts its inputs."""
    return op in _PRODUCTS or op.startswith("_scaled_dot_product")
