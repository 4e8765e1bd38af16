"""The record of a step and of its FP32 reference: two step_records with the same pages."""

from collections.abc import Sequence

import torch

from ampcheck.observe.reference.shadow import Shadow
from ampcheck.observe.statistics.step_record import Fetched, SiteKey, StepRecord
from ampcheck.values.formats import HALVES
from ampcheck.values.trace import Site


class PairedBook(StepRecord):
    """Writes down what the script computed, and in `reference` what FP32 would have there."""

    def __init__(self, shadow: Shadow, samples: int) -> None:
        super().__init__(samples)
        self.reference = StepRecord(samples)
        self._shadow = shadow

    def number(self, key: SiteKey) -> int:
        """Return the number of a site, the same in both."""
        self.reference.number(key)
        return super().number(key)

    def add(self, number: int, tensor: torch.Tensor) -> int:
        """Measure a tensor and its reference for a site; return their row."""
        reference = self._shadow.of(tensor)
        self.reference.add(number, tensor if reference is None else reference)
        return super().add(number, tensor)

    def add_all(self, numbers: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        """Measure tensors that exist all at once, and their references."""
        references = [self._shadow.of(tensor) for tensor in tensors]
        wide = [
            tensor if reference is None else reference
            for tensor, reference in zip(tensors, references, strict=True)
        ]
        self.reference.add_all(numbers, wide)
        super().add_all(numbers, tensors)

    def alias(self, row: int, number: int) -> None:
        """Count a row for a further site."""
        self.reference.alias(row, number)
        super().alias(row, number)

    def keep_loss(self, loss: torch.Tensor) -> None:
        """Keep a loss and its reference."""
        reference = self._shadow.of(loss)
        self.reference.keep_loss(loss if reference is None else reference)
        super().keep_loss(loss)

    def fetch_reference(self) -> Fetched:
        """Return the FP32 record, its sites under FP32's name."""
        fetched = self.reference.fetch()
        sites = {_wide(site): stats for site, stats in fetched.sites.items()}
        if len(sites) < len(fetched.sites):  # a line that runs in both precisions
            sites = {}
            for site, stats in fetched.sites.items():
                wide = _wide(site)
                sites[wide] = sites[wide] + stats if wide in sites else stats
        return Fetched(sites, fetched.samples, {}, fetched.losses)


def _wide(site: Site) -> Site:
    return site._replace(dtype="float32") if site.dtype in HALVES else site
