"""Short training runs against loops written by hand; whatever ends one is a row."""

import statistics
from dataclasses import replace

import pytest
import torch
from bench_models import perceptron
from torch import nn

from ampcheck.bench.request import Request
from ampcheck.bench.result import Bench
from ampcheck.bench.running.bench import Bencher
from ampcheck.bench.running.precisions import as_cuda_casts, precision
from ampcheck.bench.running.training import train
from ampcheck.bench.verdicts import judgement, verdict


def own_loss(target, batch):
    with torch.no_grad():
        return float(target.loss(target.model, batch))


def test_training_is_the_loop_a_person_writes():
    course = train(lambda seed: perceptron(seed=seed), precision("fp32"), 3, 20)
    target = perceptron(seed=3)
    optimizer = torch.optim.Adam(target.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = target.loss(target.model, target.batch(0))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert course.losses == pytest.approx(losses, rel=1e-5)
    assert course.final_loss == pytest.approx(statistics.fmean(losses[-2:]), rel=1e-5)
    assert course.full_loss == pytest.approx(own_loss(target, target.batch(0)), rel=1e-5)
    assert course.status == "ok"
    assert course.metric_low == course.metric


def test_the_metric_on_the_way_is_that_of_shorter_runs_and_changes_nothing():
    def make(seed):
        target = perceptron(seed=seed)
        target.model.insert(1, nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.3)))
        return replace(target, metric=lambda model, batch: -target.loss(model, batch) + 0 * torch.rand(()))

    course = train(make, precision("bf16"), 3, 20)
    assert course.metric_steps == (*range(2, 21, 2),)
    assert course.metrics[-1] == course.metric
    assert course.metrics[2] == train(make, precision("bf16"), 3, 6).metric
    unseen = train(lambda seed: replace(make(seed), metric=None), precision("bf16"), 3, 20)
    assert course.losses == unseen.losses
    assert unseen.metrics == unseen.metric_steps == ()


def test_the_final_loss_is_read_in_fp32_whatever_was_trained_in():
    """With a rate of zero the weights stay: FP32's loss of the first step is what all precisions have come to."""

    def make(seed):
        return perceptron(seed=seed, optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.0))

    plain, low = (train(make, precision(name), 2, 3) for name in ("fp32", "bf16"))
    assert low.full_loss == plain.full_loss == plain.losses[0]
    assert low.losses[0] != plain.losses[0], "its own loss is rounded"


def test_reading_the_training_loss_leaves_validation_as_it_was():
    """A batch norm would learn from the batches that are read."""

    def make(seed):
        target = perceptron(seed=seed)
        target.model.insert(1, nn.BatchNorm1d(64))
        return target

    course = train(make, precision("fp32"), 1, 5)
    target = make(1)
    optimizer = torch.optim.Adam(target.model.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        target.loss(target.model, target.batch(0)).backward()
        optimizer.step()
    target.model.eval()
    assert course.validation_loss == pytest.approx(own_loss(target, target.validation[0]), rel=1e-5)
    target.model.train()
    assert course.full_loss == pytest.approx(own_loss(target, target.batch(0)), rel=1e-5)


def test_a_short_training_starts_where_the_scaler_settles():
    """Twelve updates would be skipped from 2^16 on; the four steps of the run are four updates."""

    def make(seed):
        return perceptron(seed=seed, factor=2.0**15)

    course = train(make, precision("amp"), 1, 4)
    assert course.settling >= 12
    assert (course.status, course.skipped) == ("ok", 0)
    assert course.scale == 2.0 ** (16 - course.settling)
    target = make(1)
    model, optimizer = target.model, torch.optim.Adam(target.model.parameters(), lr=1e-2)
    losses = []
    with as_cuda_casts(torch.device("cpu"), precision("amp"), model):
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = target.loss(model, target.batch(0))
            (loss * course.scale).backward()
            for parameter in model.parameters():
                parameter.grad /= course.scale
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
            optimizer.step()
            losses.append(float(loss.detach()))
    assert course.losses == pytest.approx(losses, rel=1e-6)


def test_a_higher_scale_than_the_settled_one_overflows():
    """The witness for where it settles: torch's own scaler, its steps taken by hand on the same copy."""
    course = train(lambda seed: perceptron(seed=seed, factor=2.0**15), precision("amp"), 1, 1)
    target = perceptron(seed=1, factor=2.0**15)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 * course.scale)
    optimizer = torch.optim.Adam(target.model.parameters())
    with as_cuda_casts(torch.device("cpu"), precision("amp"), target.model):
        with torch.autocast("cpu", torch.float16):
            loss = target.loss(target.model, target.batch(0))
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == course.scale


def test_skipping_everything_at_every_scale_is_a_result():
    found = train(lambda seed: perceptron(seed=seed, factor=1e30), precision("amp"), 0, 3)
    assert (found.status, found.skipped, found.settling) == ("skipped", 3, 40)
    assert found.scale == 2.0 ** (16 - 40 - 3)
    assert found.message == f"every update is skipped, at loss scales down to {2.0**-27:g}"
    said = rows(lambda size, seed: perceptron(16, seed, factor=1e30), quick(precisions=("amp",), steps=3))
    assert said["amp"][1] == "training fails: every update is skipped"


def quick(**changes):
    settings = {"parts": ("training",), "precisions": ("fp32", "fp16", "amp"), "steps": 60, "seeds": 3}
    return Request(**(settings | changes))


def rows(make, request, margin=0.05):
    bench = Bencher(make, request).run(Bench("perceptron", margin=margin))
    case = bench.cases[0]
    return {row.precision: (judgement(bench, case, row), verdict(bench, case, row)) for row in case.rows}


def test_a_small_loss_needs_scaling():
    """The published experiment: without scaling the gradients are zero in fp16, with it training is as FP32's."""
    found = rows(lambda size, seed: perceptron(64, seed, factor=1e-6), quick(steps=40))
    assert found["fp16"][0].word == "stuck"
    assert found["fp16"][1] == "training fails: the loss does not fall"
    assert found["amp"][0].word in {"equivalent", "better"}
    assert found["fp32"][0].own > 0.9
    assert found["fp16"][0].own < 0.5


def test_a_run_that_ends_in_no_number_is_a_row():
    found = rows(lambda size, seed: perceptron(64, seed, factor=1e6), quick(steps=20))
    assert found["fp16"][0].word == "fails"
    assert found["fp16"][1] == "training fails: the loss is not finite"
    assert found["amp"][0].word != "fails"


@pytest.mark.parametrize(("fixed", "told"), [(True, True), (False, False)])
def test_seeds_that_change_nothing_are_said_to_be_one_run(fixed, told):
    request = quick(precisions=("fp32", "amp"), steps=4)
    bench = Bencher(lambda size, seed: perceptron(64, 0 if fixed else seed), request).run(Bench("perceptron"))
    said = f"training: all {request.seeds} seeds give the same model and batches, so they count as one run"
    assert (said in bench.cases[0].notes) is told
    assert not any("AdamW" in note for note in bench.notes)


def test_the_optimizer_that_stands_in_is_named():
    def make(size, seed):
        return replace(perceptron(64, seed), optimizer=None)

    bench = Bencher(make, quick(precisions=("fp32",), steps=2, seeds=1)).run(Bench("perceptron"))
    assert any("AdamW" in note for note in bench.notes)
