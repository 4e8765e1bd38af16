"""Number formats as data: what each can hold, and from where on it cannot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format; whatever can be derived is a property.

    >>> FP16.max, FP16.smallest_normal, FP16.smallest_subnormal == 2.0**-24
    (65504.0, 6.103515625e-05, True)
    """

    name: str
    precision: int  #: significant bits, the hidden one included
    min_exponent: int  #: floor(log2) of the smallest normal number
    max_exponent: int  #: floor(log2) of the largest finite number
    max: float  #: largest finite number
    has_inf: bool = True  #: False: what is too large becomes NaN or, as torch casts it, the largest number

    @property
    def smallest_normal(self) -> float:
        """Return the smallest number with full precision."""
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Return the smallest number above zero."""
        return 2.0**self.underflow_exponent

    @property
    def underflow_exponent(self) -> int:
        """Return floor(log2) of the smallest number above zero."""
        return self.min_exponent - self.precision + 1

    @property
    def epsilon(self) -> float:
        """Return the distance from 1 to the next number."""
        return 2.0 ** (1 - self.precision)

    @property
    def overflow_from(self) -> float:
        """Return the magnitude halfway between the largest number and where the next one would be."""
        return self.max + 2.0 ** (self.max_exponent - self.precision)

    def overflows(self, magnitude: float) -> bool:
        """Tell whether no finite number here is what a magnitude, rounded to nearest even, would be."""
        # The largest number of an IEEE format is odd, so the tie goes up; that of e4m3fn is even.
        return magnitude >= self.overflow_from if self.has_inf else magnitude > self.overflow_from


FP32 = Format("fp32", 24, -126, 127, (2 - 2.0**-23) * 2.0**127)
TF32 = Format("tf32", 11, -126, 127, (2 - 2.0**-10) * 2.0**127)
FP16 = Format("fp16", 11, -14, 15, 65504.0)
BF16 = Format("bf16", 8, -126, 127, (2 - 2.0**-7) * 2.0**127)
E4M3 = Format("e4m3", 4, -6, 8, 448.0, has_inf=False)
E5M2 = Format("e5m2", 3, -14, 15, 57344.0)

FORMATS = {fmt.name: fmt for fmt in (FP32, TF32, FP16, BF16, E4M3, E5M2)}

#: The format of a dtype, by the name torch prints after "torch.".
BY_DTYPE = {
    "float32": FP32,
    "complex64": FP32,
    "float16": FP16,
    "complex32": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
}

#: Bytes of an element, by the name torch prints after "torch.".
DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}

#: The dtypes that autocast computes in, by what they are called for short.
HALF_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
HALVES = frozenset(HALF_DTYPES.values())
#: How a dtype is written where space is short.
SHORT_DTYPE = {
    "float64": "fp64",
    **{dtype: fmt.name for dtype, fmt in BY_DTYPE.items() if "complex" not in dtype},
}
