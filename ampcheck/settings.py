"""How an audit is run: one value, whoever asks."""

from dataclasses import dataclass

PRECISIONS = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Settings:
    """What to audit with; None leaves the choice to the audit."""

    precision: str = "fp16"
    log2_scale: int | None = None  #: None: as GradScaler would, 2**16 and down for fp16, none for bf16
    steps: int = 1
    verify: bool = True  #: re-run the step to try what is claimed and to look for a remedy
    budget: float = 60.0  #: seconds for the search of a remedy

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"expected a precision of {' or '.join(PRECISIONS)}, got {self.precision!r}")
        if self.steps < 1:
            raise ValueError(f"expected at least one step, got steps={self.steps!r}")
