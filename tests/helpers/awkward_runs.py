"""Runs of the awkward models: audited, and recorded beside a witness."""

from typing import Any

import awkward_autograd
import awkward_wrappers
import pytest
import torch
from awkward_models import CASES
from torch import nn
from witness import Counts, Witness, bits, seed

from ampcheck.observe.cuda_on_cpu.wide import execute
from ampcheck.observe.model.state import Snapshot
from ampcheck.observe.recorder import Recorder
from ampcheck.observe.step import casting_rules
from ampcheck.run.audit import audit
from ampcheck.targets.spec import Target
from ampcheck.values.report import Report
from ampcheck.values.settings import Settings
from ampcheck.values.stats import TensorStats
from ampcheck.values.trace import Trace

assert {"compiled", "transforms"} <= CASES.keys(), (awkward_autograd, awkward_wrappers)  # each adds its own

REPORTS: dict[tuple[str, str], Report] = {}


def report(name: str, precision: str = "fp16") -> Report:
    """Return a case's report; the audits are shared between tests."""
    if (name, precision) not in REPORTS:
        model, batch, loss = CASES[name]()
        REPORTS[name, precision] = audit(
            Target(name, model, [batch], loss),
            Settings(precision=precision, log2_scale=4 if precision == "fp16" else 0),
        )
    return REPORTS[name, precision]


def recorded(name: str, dtype: torch.dtype | None) -> tuple[Trace, Witness]:
    """Return one step as the recorder and as the witness saw it, from the same state."""
    model, batch, loss = CASES[name]()
    if name == "lazy":
        model(batch)
    before = Snapshot(model, batch)
    recorder, witness = Recorder(model, execute=execute), Witness(execute)
    for mode in (recorder, witness):
        before.restore()
        seed()
        with casting_rules(torch.device("cpu"), dtype), mode:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                value = loss(model, batch)
            value.backward()
    return recorder.trace(recorder.fetch()), witness


def ran(trace: Trace, **wanted: Any) -> dict[Any, TensorStats]:
    return {
        site: stats
        for site, stats in trace.sites.items()
        if all(getattr(site, key) == value for key, value in wanted.items())
    }


def same(stats: TensorStats, counts: Counts) -> bool:
    exact = (stats.numel, stats.zeros, stats.infs, stats.nans, stats.amax)
    return exact == (
        counts.numel,
        counts.zeros,
        counts.infs,
        counts.nans,
        counts.amax,
    ) and stats.sum_squares == pytest.approx(counts.squares, rel=1e-5)


def bits_of(model: Any, batch: Any) -> Any:
    found = {}
    for name in ("net", "encoder", "decoder"):
        cell = getattr(model, name, None)
        if isinstance(cell, nn.Module):
            found[name] = {key: bits(t) for key, t in cell.state_dict().items()}
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        found["all"] = model.__dict__.keys(), {key: bits(t) for key, t in nn.Module.state_dict(model).items()}
    return found, [bits(t) for t in torch.utils._pytree.tree_leaves(batch) if isinstance(t, torch.Tensor)]
