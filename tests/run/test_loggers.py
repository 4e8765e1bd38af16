"""Numbers of a watched loop in the loggers that a script uses; what they hold is read by another hand."""

import math
import re
import sys
import types

import pytest
import torch
from torch import nn

from ampcheck.run.loggers import Mlflow, Prometheus, Wandb, parsed
from ampcheck.run.progress_line import Numbers
from ampcheck.run.session import Session
from ampcheck.run.tensorboard import Scalar
from ampcheck.values.settings import Schedule

SCALARS = [
    Scalar("ampcheck/loss scale/scaler 1", 0, 65536.0),
    Scalar("ampcheck/loss scale/scaler 1", 3, 32768.0),
    Scalar("ampcheck/skipped steps", 3, 1.0),
    Scalar("ampcheck/worst underflow", 3, 0.25),
]
#: A line of Prometheus' text format: prometheus.io, "Exposition formats".
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"\})? (\S+)')


def test_prometheus_reads_the_last_value_of_each_number(tmp_path):
    file = tmp_path / "ampcheck.prom"
    (sink,) = parsed(f"prometheus:{file}")
    assert isinstance(sink, Prometheus)
    sink.add(SCALARS[:1])
    sink.add(SCALARS[1:])
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    read = {found[1] + (found[2] or ""): float(found[3]) for found in map(SAMPLE.fullmatch, lines)}
    assert read == {
        'ampcheck_loss_scale{scaler="scaler 1"}': 32768.0,
        "ampcheck_skipped_steps": 1.0,
        "ampcheck_worst_underflow": 0.25,
        "ampcheck_step": 3.0,
    }
    assert file.read_text().count("# TYPE ampcheck_loss_scale gauge") == 1


def test_wandb_gets_numbers_without_a_step_of_its_own(monkeypatch):
    logged = []
    run = types.SimpleNamespace(log=lambda values, **options: logged.append((values, options)))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=run))
    Wandb().add(SCALARS)
    ((values, options),) = logged
    assert options == {"commit": False}  # the script's next log carries them, at the script's step
    assert values["ampcheck/loss scale/scaler 1"] == 32768.0
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    Wandb().add(SCALARS)  # a script that has no run open is left alone
    assert len(logged) == 1


def test_mlflow_gets_each_number_at_its_step(monkeypatch):
    logged = []
    mlflow = types.SimpleNamespace(
        active_run=object, log_metric=lambda name, value, step: logged.append((name, value, step))
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    Mlflow().add(SCALARS)
    assert logged == [(scalar.tag, scalar.value, scalar.step) for scalar in SCALARS]
    monkeypatch.delitem(sys.modules, "mlflow")
    Mlflow().add(SCALARS)
    assert len(logged) == len(SCALARS)


@pytest.mark.parametrize("text", ["tensorbored", "prometheus", "wandb:file"])
def test_what_is_no_logger_is_refused(text):
    with pytest.raises(ValueError, match="expected wandb"):
        parsed(text)


@pytest.mark.parametrize("power", [10, 127])
def test_the_gradient_norm_is_that_of_torch_without_the_loss_scale(power):
    torch.manual_seed(0)
    session, norms = Session(Schedule(first=2, every=0)), []
    with session.watching():
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power)
        for _ in range(2):
            optimizer.zero_grad()
            scale = scaler.get_scale()
            scaler.scale(100 * model(torch.randn(4, 5)).square().mean()).backward()
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item() / scale)
            scaler.step(optimizer)
            scaler.update()
    found = [
        scalar.value for scalar in Numbers().fresh(session.watcher) if scalar.tag == "ampcheck/gradient norm"
    ]
    assert found == pytest.approx(norms, rel=1e-5, nan_ok=True)
    assert math.isfinite(found[0]) is (power == 10)  # 100 times 2^127 is more than FP32 holds
