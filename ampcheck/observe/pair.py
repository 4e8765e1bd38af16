"""The paired step: the same state run in FP32 and in low precision, and the difference site by site."""

from collections.abc import Mapping, Sequence

import torch

from ampcheck.observe.book import Fetched
from ampcheck.trace import PairError, Site

#: Elements compared of each result; enough to know an RMS error to about a tenth.
SAMPLES = 128


def pair_errors(reference: Fetched, low: Fetched, log2_scale: int) -> dict[Site, PairError]:
    """Return the sums of error by site of the low-precision run, gradients unscaled first."""
    known = _by_place(reference.samples)
    pairs = [
        (site, before, after * 2.0**-log2_scale if log2_scale and site.scaled else after)
        for site, calls in low.samples.items()
        if len(known.get(site.place, ())) == len(calls)
        for before, after in zip(known[site.place], calls, strict=True)
        if before.shape == after.shape
    ]
    if not pairs:
        return {}
    sites = list(dict.fromkeys(site for site, _, _ in pairs))
    numbers = {site: number for number, site in enumerate(sites)}
    groups = torch.tensor([numbers[site] for site, _, _ in pairs])
    lengths = torch.tensor([before.numel() for _, before, _ in pairs])
    return _sums(
        sites,
        groups.repeat_interleave(lengths),
        torch.cat([before for _, before, _ in pairs]),
        torch.cat([after for _, _, after in pairs]),
    )


def _by_place(samples: Mapping[Site, Sequence[torch.Tensor]]) -> dict[Site, list[torch.Tensor]]:
    found: dict[Site, list[torch.Tensor]] = {}
    for site, calls in samples.items():
        found.setdefault(site.place, []).extend(calls)
    return found


def _sums(
    sites: Sequence[Site], groups: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> dict[Site, PairError]:
    finite = before.isfinite() & after.isfinite()
    r, x = before.where(finite, 0.0), after.where(finite, 0.0)
    live = (r != 0) & finite
    columns = {
        "sampled": torch.ones_like(r),
        "live": live.double(),
        "lost": (live & (x == 0)).double(),
        "error_squares": (x - r) ** 2,
        "error_sum": x - r,
        "reference_squares": r**2,
        "cross": x * r,
        "nonfinite": (~finite).double(),
    }
    names = list(columns)
    table = torch.zeros(len(sites), len(names), dtype=torch.float64)
    table.index_add_(0, groups, torch.stack(list(columns.values()), dim=1))
    counted = {"sampled", "live", "lost", "nonfinite"}
    return {
        site: PairError(**{n: int(v) if n in counted else v for n, v in zip(names, row, strict=True)})
        for site, row in zip(sites, table.tolist(), strict=True)
    }
