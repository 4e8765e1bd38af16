"""What mixed precision would do to a script that does not use it: its recorded steps run under autocast.

The forward of such a step runs in low precision along with a reference; the backward starts from the loss scale, and
then the script gets back the gradients and running averages that FP32 has: it goes on training as it always did.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch

from ampcheck.observe.cuda_on_cpu.casting import Refusals
from ampcheck.observe.cuda_on_cpu.emulation import cuda_casting, prepare
from ampcheck.observe.model.structure import modules, own_parameters
from ampcheck.observe.script.comparing import Compared
from ampcheck.observe.script.recording import unseen
from ampcheck.observe.script.scaling.losses import leaves_of
from ampcheck.observe.unusual import plain
from ampcheck.values.plan import DEFAULT_SCALE


class WhatIf:
    """The recorded steps of a script, run in another precision."""

    def __init__(self, dtype: torch.dtype, prepare: Callable[[], None] = prepare) -> None:
        """Prepare to run steps in a dtype; float16 has a loss scale, which falls as GradScaler's does."""
        self._prepare = prepare
        self.dtype = dtype
        self.scale = DEFAULT_SCALE if dtype is torch.float16 else 1.0
        self._region, self._rules = ExitStack(), ExitStack()
        self._casting = self._ruled = False
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.refused: Callable[[RuntimeError], None] = lambda _: None  #: hears of operations that it refuses

    def enter(self) -> None:
        """Begin to cast; the region ends with `leave`, wherever that is called."""
        if self._casting:
            return
        if not self._ruled:
            self._prepare()
            self._rules.enter_context(cuda_casting())
        self._casting = self._ruled = True
        Refusals.heard = self.refused
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.autocast_increment_nesting()
        torch.set_autocast_enabled("cpu", True)  # noqa: FBT003  # torch's own signature
        torch.set_autocast_dtype("cpu", self.dtype)
        self._region.callback(_restore, enabled, dtype)

    def leave(self) -> None:
        """Stop casting; the backward still needs CUDA's kernels."""
        self._casting = False
        self._region.close()

    def stop(self) -> None:
        """Take everything away."""
        Refusals.heard = None
        self.leave()
        self._ruled = False
        self._rules.close()

    def seed(self, loss: torch.Tensor, recording: Compared) -> torch.Tensor:
        """Return what the backward of a loss starts from, and put aside what it would be added to."""
        self._before = {}
        for leaf in leaves_of(loss):
            self._before[id(leaf)] = (leaf, leaf.grad)
            leaf.grad = None
        with unseen():
            seed = torch.full_like(loss.detach(), self.scale)
        recording.scaled_by(seed)
        return seed

    def give_back(self, recording: Compared | None) -> None:
        """Measure the gradients of a backward, and leave those of FP32 in their place.

        Without a recording, which was abandoned, they are only brought back to the script's scale.
        """
        with unseen():
            for key, (leaf, grad) in list(self._before.items()):
                if leaf.grad is None:
                    leaf.grad = grad
                else:
                    low = leaf.grad
                    wide = low / self.scale if recording is None else recording.measured(leaf, low)
                    leaf.grad = wide if grad is None else grad + wide
                del self._before[key]  # where one of them fails, the others are still to be given back

    def settle(self, recording: Compared) -> None:
        """Leave FP32's running averages behind, and lower the scale where gradients were not finite."""
        with unseen():
            recording.restore_buffers()
        if recording.overflowed() and self.scale > 1:
            self.scale /= 2


def kinds_that_cannot_be_read(module: torch.nn.Module) -> set[str]:
    """Return the types of parameters whose gradients could not be given back as FP32 has them."""
    held = (parameter for part in modules(module) for _, parameter in own_parameters(part))
    return {type(parameter).__name__ for parameter in held if plain(parameter) is not parameter}


def _restore(enabled: bool, dtype: torch.dtype) -> None:  # noqa: FBT001  # what torch takes
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)
