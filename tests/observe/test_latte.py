"""A Latte-style diffusion transformer with gradient checkpointing, audited as a model and as a script."""

import subprocess
from pathlib import Path

import forked
import latte_model
import torch

import ampcheck
from ampcheck.saved.report_json import read
from ampcheck.values.settings import Settings
from ampcheck.values.trace import Phase

SCRIPT = Path(latte_model.__file__)


def audited(*, checkpointed):
    torch.manual_seed(0)
    model = latte_model.Latte(depth=2, checkpointed=checkpointed)
    return ampcheck.check(model, latte_model.batch(), latte_model.loss, settings=Settings(verify=False))


def of_phase(report, phase):
    """Return what operations in the model's parts gave: the call of a block is another line when checkpointed."""
    return {
        site: stats
        for site, stats in report.low.sites.items()
        if site.phase is phase and site.op and site.module.startswith("blocks.")
    }


def test_checkpointing_recomputes_and_changes_no_number():
    kept, again = audited(checkpointed=False), audited(checkpointed=True)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert of_phase(kept, phase)
        assert of_phase(again, phase) == of_phase(kept, phase)
    assert not of_phase(kept, Phase.RECOMPUTE)
    recomputed = {site.place.op for site in of_phase(again, Phase.RECOMPUTE)}
    assert {"addmm", "bmm", "_softmax", "gelu"} <= recomputed
    assert again.findings == kept.findings == ()


def test_its_script_trains_as_alone_and_is_seen_block_by_block(tmp_path):
    out = tmp_path / "report.json"
    run = [*forked.python(), "-m", "ampcheck", "run", "--as-cuda", "--format", "json", "-o", str(out)]
    alone = (
        "import sys; from ampcheck.observe.script.cuda.as_cuda import AsCuda; AsCuda(available=True); "
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); import latte_model; latte_model.main()"
    )
    watched = subprocess.run([*run, str(SCRIPT)], check=True, capture_output=True, text=True, cwd=tmp_path)
    bare = subprocess.run(
        [*forked.python(), "-c", alone], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert watched.stdout == bare.stdout
    report = read(out)
    assert report.loop.steps == 4
    assert not report.findings
    assert report.outcomes["settled"].grad_error < 0.01
    places = {site.module for site in report.low.sites if site.phase is Phase.RECOMPUTE}
    assert {f"model.blocks.{i}.attention" for i in range(4)} <= places
