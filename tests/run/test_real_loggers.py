"""Numbers in the real W&B and MLflow, read back by their own hand; skipped where they are not installed."""

import pytest

from ampcheck.run.loggers import Mlflow, Wandb
from ampcheck.run.tensorboard import Scalar

SCALARS = [
    Scalar("ampcheck/loss scale/scaler 1", 0, 65536.0),
    Scalar("ampcheck/loss scale/scaler 1", 3, 32768.0),
    Scalar("ampcheck/skipped steps", 3, 1.0),
    Scalar("ampcheck/gradient norm", 3, float("inf")),
]


def test_mlflow_has_each_number_at_its_step(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        Mlflow().add(SCALARS)
    client = mlflow.MlflowClient()
    for tag in {scalar.tag for scalar in SCALARS}:
        history = client.get_metric_history(run.info.run_id, tag)
        assert [(m.step, m.value) for m in history] == [(s.step, s.value) for s in SCALARS if s.tag == tag]


def test_wandb_has_the_last_of_each_number_with_the_scripts_own_step(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="ampcheck")
    Wandb().add(SCALARS)
    run.log({"loss": 1.0}, step=7, commit=True)
    summary = dict(run.summary)
    run.finish()
    assert summary["ampcheck/loss scale/scaler 1"] == 32768.0
    assert summary["ampcheck/skipped steps"] == 1.0
    assert (summary["loss"], summary["_step"]) == (1.0, 7)
