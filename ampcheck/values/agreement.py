"""How far an output in low precision is from FP32's, in the terms that its meaning asks for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, log10
from statistics import median

from ampcheck.values.wording import count, percent, plural

#: Relative L2 error of an output from which on it is called harmed. Rounding to fp16 gives up to 0.5 %, to bf16
#: up to 3 % where nothing magnifies it.
HARM_OUTPUT = 0.07
#: Share of the tokens that may differ before an output counts as harmed.
HARM_TOKENS = 0.02
#: The same two, up to which an output counts as FP32's: what a remedy must come to.
WELL_OUTPUT = {"fp16": 0.02, "bf16": 0.05}
WELL_TOKENS = 0.005
#: Times the error of rounded weights up to which an output only shows rounding. Each operation rounds
#: three tensors where that run rounds one.
EXPLAINS = 3.0
NUMBERS, LOGITS, IMAGE, TOKENS = "numbers", "logits", "image", "tokens"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One output in low precision against FP32's, over one or more batches: the worst of them."""

    name: str  #: output, output[1], output.logits
    meaning: str  #: numbers, logits, image or tokens
    error: float  #: relative L2 error; of tokens, the share that differs; inf where only FP32 is finite
    typical: float = 0.0  #: the median of the error over the batches
    cosine: float = 1.0
    psnr: float | None = None  #: of images, in decibels
    top1: float | None = None  #: of logits: the share whose largest, and whose five largest, are the same
    top5: float | None = None
    kl: float | None = None  #: of logits: mean divergence of the softmax from FP32's
    diverged: int | None = None  #: of tokens: the first position at which a sequence differs
    nonfinite: int = 0  #: elements that are finite in FP32 only
    unfit: int = 0  #: elements that FP32 itself leaves without a finite number
    elements: int = 0
    batch: int = 0  #: the worst one
    batches: int = 1

    @property
    def limit(self) -> float:
        """Return the error up to which nothing is wrong."""
        return HARM_TOKENS if self.meaning == TOKENS else HARM_OUTPUT

    @property
    def harmed(self) -> bool:
        """Tell whether the output is not FP32's."""
        return bool(self.nonfinite) or not self.error <= self.limit

    def well(self, precision: str) -> bool:
        """Tell whether the output is FP32's but for rounding."""
        most = WELL_TOKENS if self.meaning == TOKENS else WELL_OUTPUT[precision]
        return not self.nonfinite and self.error <= most

    @property
    def snr(self) -> float:
        """Return signal over noise in decibels; inf where there is no noise."""
        return inf if not self.error else -20 * log10(self.error) if isfinite(self.error) else -inf

    @property
    def words(self) -> str:
        """Return how it agrees in a few words."""
        where = f" of {self.name}" if self.name != "output" else ""
        if self.nonfinite:
            return f"{count(self.nonfinite)} of {plural(self.elements, 'element')}{where} not finite"
        if self.meaning == TOKENS:
            shown = f"{percent(self.error)} of the tokens{where} differ"
            return (
                shown if self.diverged is None else f"{shown}, the first at position {count(self.diverged)}"
            )
        shown = f"output error {percent(self.error)}{where}"
        if self.psnr is not None and isfinite(self.psnr):
            shown += f", PSNR {self.psnr:.1f} dB"
        return shown if self.top1 is None else f"{shown}, top-1 {percent(self.top1)}"

    @property
    def measures(self) -> dict[str, str]:
        """Return each measure that fits what the output means, ready to print."""
        if self.meaning == TOKENS:
            first = "none" if self.diverged is None else count(self.diverged)
            return {"tokens that differ": percent(self.error), "first difference": first}
        made = {"error": percent(self.error)}
        if self.batches > 1:
            made["typical error"] = percent(self.typical)
        made |= {"cosine": f"{self.cosine:.6g}", "SNR": f"{self.snr:.1f} dB"}
        if self.psnr is not None:
            made["PSNR"] = f"{self.psnr:.1f} dB"
        if self.top1 is not None and self.top5 is not None and self.kl is not None:
            made |= {"top-1": percent(self.top1), "top-5": percent(self.top5), "KL": f"{self.kl:.2g}"}
        return made


def worst(rows: Iterable[Iterable[Agreement]]) -> tuple[Agreement, ...]:
    """Return, of the agreements of several batches, each output's worst one and what is typical of it."""
    by_name: dict[str, list[Agreement]] = {}
    for batch, row in enumerate(rows):
        for one in row:
            by_name.setdefault(one.name, []).append(replace(one, batch=batch))
    return tuple(
        replace(
            max(found, key=lambda one: (bool(one.nonfinite), one.error)),
            typical=median(one.error for one in found),
            batches=len(found),
        )
        for found in by_name.values()
    )


def only_magnifies(outputs: Iterable[Agreement], rounded: Iterable[Agreement]) -> bool:
    """Tell whether no output is further off than rounding nothing but the weights explains, part by part."""
    known: Mapping[str, float] = {one.name: one.error for one in rounded if not one.nonfinite}
    return all(
        not one.nonfinite and one.error <= max(one.limit, EXPLAINS * known.get(one.name, 0.0))
        for one in outputs
    )
