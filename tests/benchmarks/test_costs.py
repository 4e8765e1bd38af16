"""Counts behind the cost benchmark that do not wobble: host reads, peak memory, size of the report."""

import pytest
import torch
from costs import count_reads, memory, peak_bytes, reads, recorded
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import decoder, resnet18, small

from ampcheck.observe.recorder import Recorder
from ampcheck.run.audit import audit
from ampcheck.saved.report_json import to_json
from ampcheck.targets import Options, load
from ampcheck.values.settings import Settings


class Naive(TorchDispatchMode):
    """Reads a number out of every result, as recorders do that are written without care."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            out.abs().max().item()
        return out


def test_the_counter_sees_reads_inside_a_dispatch_mode():
    def decide() -> None:
        assert bool(torch.ones(3).sum() > 0)

    def careless() -> None:
        with Naive():
            decide()

    assert count_reads(decide) == {"aten::is_nonzero": 1, "aten::_local_scalar_dense": 1}
    found = count_reads(careless)
    assert found["item"] == 2
    assert found["aten::_local_scalar_dense"] >= 3
    assert count_reads(lambda: torch.ones(3).cpu().tolist()) == {"cpu": 1, "tolist": 1}


def test_a_step_is_recorded_without_a_host_read_and_fetched_by_one_transfer():
    for make in (resnet18, decoder, small):
        workload = make(batch=2, size=32) if make is resnet18 else make()
        inside, after = reads(workload)
        assert not inside
        assert after["cpu"] == 1


def test_the_allocator_sees_what_is_held_at_once():
    def held() -> None:
        first = torch.empty(2**20)
        del first
        second, third = torch.empty(2**18), torch.empty(2**18)
        del second, third

    assert 4 * 2**20 <= peak_bytes(held) < 4.1 * 2**20


@pytest.mark.parametrize(
    "build",
    [decoder, pytest.param(lambda: resnet18(batch=4, size=96), marks=pytest.mark.long)],
    ids=["decoder", "resnet18"],
)
def test_recording_adds_less_than_a_tenth_to_the_peak(build):
    workload = build()
    workload.step()
    bare, with_recorder = memory(workload)
    assert with_recorder - bare <= 0.1 * bare


def test_records_are_added_up_before_they_grow_with_the_step():
    workload = small()
    recorded(workload)

    def peak(steps: int) -> int:
        def several() -> None:
            with recorder:
                for _ in range(steps):
                    workload.step()

        recorder = Recorder(workload.model)
        workload.model.zero_grad()
        return peak_bytes(several)

    # Four more steps measure more than 5000 tensors, 10 MiB of records of 2 KiB each.
    assert peak(6) - peak(2) < 2**20


def test_the_report_does_not_grow_with_the_tensors():
    sizes = []
    for batch in (2, 8):
        target = load("torchvision:resnet18", Options(small=True, batch_size=batch))
        sizes.append(len(to_json(audit(target, Settings(verify=False)))))
    assert abs(sizes[1] / sizes[0] - 1) < 0.05
