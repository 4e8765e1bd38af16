"""Keras on torch without a callback: torch knows nothing of its loss scale, and a report does not say there is none."""

import importlib.util

import pytest
from scripts_run import DIGEST, alone, watched

from ampcheck.renderers import terminal
from ampcheck.values.verdict import Health

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
#: At this batch a gradient is infinite in fp16.
OVERFLOWS = 6
TEXT = f"""
import sys, keras, numpy, torch

keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(0)
layers = [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4, dtype="float32")]
model = keras.Sequential(layers)
adam = keras.optimizers.Adam(1e-3)
optimizer = keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0**14, dynamic_growth_steps=4)
measured = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
draw = numpy.random.default_rng(0)
x, y = draw.normal(size=(10, 16, 8)).astype("float32"), draw.integers(0, 4, (10, 16))
x[{OVERFLOWS}] *= 1e6

def told(*_, **__):
    print("scale", float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)))

if sys.argv[1] == "fit":
    model.compile(optimizer, measured)
    told = keras.callbacks.LambdaCallback(on_train_batch_end=told)
    model.fit(x.reshape(-1, 8), y.reshape(-1), batch_size=16, shuffle=False, verbose=0, callbacks=[told])
else:
    optimizer.build(model.trainable_variables)
    for inputs, labels in zip(x, y):
        model.zero_grad()
        loss = measured(torch.as_tensor(labels), model(torch.as_tensor(inputs), training=True))
        optimizer.scale_loss(loss).backward()
        weights = list(model.trainable_weights)
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        told()
trained = [weight.value for weight in model.trainable_weights]
{DIGEST}"""


@pytest.mark.parametrize("how", ["loop", "fit"])
def test_a_scale_that_torch_does_not_know_is_unknown_and_not_none(tmp_path, how):
    script = tmp_path / "small.py"
    script.write_text(TEXT)
    bare = alone(script, how, KERAS_BACKEND="torch")
    ran = watched(script, how, KERAS_BACKEND="torch")
    assert ran.printed == bare.printed
    scales = bare.numbers("scale")
    assert scales[OVERFLOWS] == scales[OVERFLOWS - 1] / 2  # the premise: it is alive, grows and falls
    assert scales[OVERFLOWS - 1] == 2 * scales[0] == 2.0**15
    report, sentence = ran.report, ran.report.verdict.sentence
    assert report.precision == "fp16"
    assert report.loop.scaling == "the loss is multiplied by 2^14; what divides its gradients was not seen"
    assert f"the loss scale is unknown: {report.loop.scaling}" in sentence
    assert report.verdict.word in (Health.PARTLY_AUDITED, Health.UNKNOWN)
    text = " ".join(terminal.render(report, width=300).split())
    assert "loss scale unknown" in text
    assert "without a loss scale" not in text
