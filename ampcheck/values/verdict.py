"""A verdict: the answer of a report in one word and one sentence, with what it rests on.

It is made once, from the findings that count and from what was seen. Whatever prints, exits, asserts or compares
reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ampcheck.values.codec import Shape


class Health(StrEnum):
    """The verdict in a word. The first four get worse in this order; the last says nothing."""

    SAFE = "safe"  #: everything was seen, and nothing is wrong
    PARTLY_AUDITED = "partly audited"  #: nothing is wrong with what was seen, and not everything was
    RISK = "risk"  #: works, with warnings
    UNSAFE = "unsafe"  #: a finding of severity error counts
    UNKNOWN = "unknown"  #: nothing was seen that could be judged


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a program was seen. What is missing here keeps a report from being called safe."""

    JSON = Shape(optional=("state",))

    parameters: int = 0  #: that were trained
    elements: int = 0  #: of these parameters
    unseen: Mapping[str, int] = field(default_factory=dict)
    """Elements by name, of trained parameters whose gradient was not seen in low precision and in FP32; "g.*" stands
    for all below a module."""
    idle: int = 0  #: parameters that could be trained and got no gradient, in FP32 neither
    operations: int = 0  #: that were recorded in low precision
    casts: int = 0  #: of these
    backwards: int = 0  #: losses whose backward was recorded
    state: int = 0  #: tensors beside parameters that a step left behind and FP32 was compared with: buffers, attributes
    judged: int = 0  #: steps that were recorded in low precision and in FP32
    completed: int = 0  #: steps that changed the weights
    skipped: int = 0  #: steps that a loss scaler skipped
    raised: str = ""  #: the kind of exception that ended the program
    asked: str = ""  #: precision that was asked for, where another one ran
    asked_by: str = ""  #: the words that ask for it, and where they stand
    stood_in: bool = False  #: a CPU stood in for CUDA, so this precision was run here only because of that
    gaps: tuple[str, ...] = ()  #: sentences: what else was not seen, what matters most first

    def __add__(self, other: "Coverage") -> "Coverage":
        """Return what was seen of two parts of a program: ranks hold the same parameters."""
        return Coverage(
            max(self.parameters, other.parameters),
            max(self.elements, other.elements),
            {**self.unseen, **other.unseen},
            max(self.idle, other.idle),
            self.operations + other.operations,
            self.casts + other.casts,
            self.backwards + other.backwards,
            max(self.state, other.state),
            self.judged + other.judged,
            self.completed + other.completed,
            self.skipped + other.skipped,
            max(self.raised, other.raised),
            max(self.asked, other.asked),
            max(self.asked_by, other.asked_by),
            self.stood_in or other.stood_in,
            self.gaps if self.gaps == other.gaps else tuple(sorted({*self.gaps, *other.gaps})),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a report."""

    word: Health = Health.UNKNOWN
    sentence: str = "this report was not judged"
    reasons: tuple[str, ...] = ()  #: codes of the findings behind the word
    coverage: Coverage = field(default_factory=Coverage)


#: Of a report that nobody has judged yet.
NOT_JUDGED = Verdict()
