"""The paired step: the same state run in FP32 and in low precision, and the difference site by site."""

from collections.abc import Mapping, Sequence

import torch

from ampcheck.observe.statistics.step_record import Fetched
from ampcheck.values.trace import PairError, Site, is_result

#: Elements compared of each result; enough to know an RMS error to about a tenth.
SAMPLES = 128


def pair_errors(reference: Fetched, low: Fetched, log2_scale: int) -> dict[Site, PairError]:
    """Return the sums of error by site of the low-precision run, gradients unscaled first."""
    known = _by_place(reference.samples)
    pairs = [
        (site, before, after)
        for site, calls in low.samples.items()
        if is_result(site)
        if len(others := known.get(site.place, ())) == len(calls)
        for before, after in zip(others, calls, strict=True)
        if before.shape == after.shape
    ]
    if not pairs:
        return {}
    numbers: dict[Site, int] = {}
    groups = torch.tensor([numbers.setdefault(site, len(numbers)) for site, _, _ in pairs])
    lengths = torch.tensor([before.numel() for _, before, _ in pairs])
    reference_values = torch.cat([before for _, before, _ in pairs])
    values = torch.cat([after for _, _, after in pairs])
    if log2_scale:
        scales = [2.0**-log2_scale if site.scaled else 1.0 for site, _, _ in pairs]
        values = _unscaled(reference_values, values, lengths, scales)
    columns = _columns(reference_values, values)
    # Call by call first: adding thousands of elements up by site takes longer than all else here.
    calls = [torch.segment_reduce(column, "sum", lengths=lengths) for column in columns]
    table = torch.zeros(len(numbers), len(columns), dtype=torch.float64)
    table.index_add_(0, groups, torch.stack(calls, dim=1))
    counts = zip(
        numbers, table[:, [0, 1, 2, 7]].to(torch.int64).tolist(), table[:, 3:7].tolist(), strict=True
    )
    return {
        site: PairError(sampled, live, lost, error, off, before, cross, nonfinite)
        for site, (sampled, live, lost, nonfinite), (error, off, before, cross) in counts
    }


def _unscaled(
    before: torch.Tensor, after: torch.Tensor, lengths: torch.Tensor, scales: list[float]
) -> torch.Tensor:
    """Return results without the scales; some of the backward carry none, such as 2x in the gradient of x².

    Those are as large as in FP32 as they are; what is compared has to be at one scale.
    """
    divided = after * torch.tensor(scales, dtype=after.dtype).repeat_interleave(lengths)
    known = before.isfinite() & after.isfinite()
    off = [(held - before).where(known, 0.0).double().square() for held in (divided, after)]
    apart, as_it_is = (torch.segment_reduce(one, "sum", lengths=lengths) for one in off)
    return torch.where((as_it_is < apart).repeat_interleave(lengths), after, divided)


def _by_place(samples: Mapping[Site, Sequence[torch.Tensor]]) -> dict[Site, list[torch.Tensor]]:
    found: dict[Site, list[torch.Tensor]] = {}
    for site, calls in samples.items():
        found.setdefault(site.place, []).extend(calls)
    return found


def _columns(before: torch.Tensor, after: torch.Tensor) -> list[torch.Tensor]:
    """Return what each pair adds to the fields of PairError, in their order."""
    finite = before.isfinite() & after.isfinite()
    r, x = before.where(finite, 0.0), after.where(finite, 0.0)
    live = (r != 0) & finite
    lost = live & (x == 0)
    counted = [column.double() for column in (torch.ones_like(finite), live, lost)]
    off = x - r
    return [*counted, off.square(), off, r.square(), x * r, (~finite).double()]
