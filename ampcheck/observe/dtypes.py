"""The torch dtypes of the precisions that autocast has."""

import torch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
#: Of a dtype, what it is called.
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
HALVES = frozenset(PRECISIONS)
#: By dtype of half precision, the one that FP32 has in its place.
WIDE = {**dict.fromkeys(HALVES, torch.float32), torch.complex32: torch.complex64}
