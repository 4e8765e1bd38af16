"""The sweeps of `ampcheck bench`: each option is a list, and every combination of them is a case."""

import argparse
from collections.abc import Callable, Iterable, Sequence

from ampcheck.bench.request import ATTENTION, COMPILED, OFF, OPTIMIZERS, PARALLEL, scaler_of
from ampcheck.bench.result import Case
from ampcheck.cli.check import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting that can be swept over, under its name in a `Request`."""
    sweep = parser.add_argument_group("sweeps, each a list such as on,off")
    sweep.add_argument("--batch-sizes", type=_counts, default=(None,), metavar="N,N")
    sweep.add_argument(
        "--mode", dest="modes", type=names(("train", "infer")), default=("train",), metavar="train,infer"
    )
    for name in ("--checkpointing", "--channels-last"):
        sweep.add_argument(name, type=_switches, default=(False,), metavar="on,off")
    about = "on, off, or a mode of torch.compile"
    sweep.add_argument(
        "--compile", dest="compiled", type=names(COMPILED), default=(OFF,), metavar="C,C", help=about
    )
    about = "make the optimizer again in this form"
    sweep.add_argument(
        "--optimizer",
        dest="optimizers",
        type=names(OPTIMIZERS),
        default=("",),
        metavar=",".join(OPTIMIZERS),
        help=about,
    )
    about = "backend of scaled_dot_product_attention; cudnn and efficient need a GPU"
    sweep.add_argument(
        "--sdpa",
        dest="attention",
        type=names(ATTENTION),
        default=("",),
        metavar=",".join(ATTENTION),
        help=about,
    )
    about = "capture forward and backward once and replay them; needs a GPU"
    sweep.add_argument("--cuda-graphs", type=_switches, default=(False,), metavar="on,off", help=about)
    about = "initial scale and growth interval of GradScaler, such as 2^16/2000,2^10/100"
    sweep.add_argument(
        "--scaler", dest="scalers", type=_scalers, default=("",), metavar="S/N,S/N", help=about
    )
    about = "time each case by so many processes, which torchrun launches"
    sweep.add_argument("--ranks", type=_counts, default=(1,), metavar="N,N", help=about)
    about = "how ranks share the work; FSDP2 computes by its own mixed-precision policy, not by autocast"
    sweep.add_argument(
        "--parallel", type=names(PARALLEL), default=PARALLEL[:1], metavar=",".join(PARALLEL), help=about
    )


def launched(words: Sequence[str], case: Case) -> Case:
    """Return a case that its ranks have measured: the same command, with this case's settings after its own."""
    from ampcheck.bench.running.ranks import launched as measured

    sweeps = {
        "--batch-sizes": str(case.batch_size or ""), "--mode": case.mode, "--ranks": str(case.ranks),
        "--parallel": case.parallel, "--checkpointing": _switch(case.checkpointing),
        "--channels-last": _switch(case.channels_last), "--cuda-graphs": _switch(case.cuda_graphs),
        "--compile": case.compile_mode or _switch(case.compiled),
        "--optimizer": case.optimizer, "--sdpa": case.attention, "--scaler": case.scaler,
    }  # fmt: skip
    own = [f"{name}={value}" for name, value in sweeps.items() if value]
    return measured([*words, *own, "--parts=time,memory", "--output=-"], case)


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads a list of these names."""
    allowed = tuple(known)

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        unknown = [part for part in found if part not in allowed]
        if unknown:
            words = f"expected some of {', '.join(allowed)}, got {', '.join(unknown)}"
            raise argparse.ArgumentTypeError(words)
        return found

    return parse


def _switch(on: bool) -> str:  # noqa: FBT001
    return "on" if on else OFF


def _switches(text: str) -> tuple[bool, ...]:
    return tuple(word == "on" for word in names(("on", OFF))(text))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(count(part.strip()) for part in text.split(","))


def _scalers(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        try:
            good = min(scaler_of(part)) > 0
        except (ValueError, OverflowError):
            good = False
        if not good:
            words = f"expected a scale and an interval such as 2^16/2000, got {part!r}"
            raise argparse.ArgumentTypeError(words)
    return found
