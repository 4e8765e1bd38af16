"""The memory of a step: predictions against sums by hand, real allocations, and CUDA's own autocast."""

import pytest
import torch
from bench_models import CLASSES, INSIDE, WIDE, perceptron
from parity import CAN_DIFFERENTIATE, cuda_autocast, fake
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.bench.ledger import BLOCK, Allocation, Ledger
from ampcheck.bench.result import Case
from ampcheck.bench.running.precisions import precision
from ampcheck.bench.running.predict import fitting_batch, measured_on_cpu, predict
from ampcheck.bench.running.settings import put
from ampcheck.bench.running.watching import Watch
from ampcheck.targets.spec import Target


def blocks(*shapes, size=4):
    total = 0
    for shape in shapes:
        length = size
        for side in shape:
            length *= side
        total += -(-length // BLOCK) * BLOCK
    return total


WEIGHTS = ((INSIDE, WIDE), (INSIDE,), (CLASSES, INSIDE), (CLASSES,))


def test_parameters_gradients_and_adams_state_are_what_a_person_computes():
    split = predict(lambda: perceptron(4), precision("fp32")).split
    steps = len(WEIGHTS) * BLOCK  # Adam counts its steps in a tensor for each parameter
    assert split.moment == "update"
    assert split.roles["parameters"] == blocks(*WEIGHTS)
    assert split.roles["gradients"] == blocks(*WEIGHTS)
    assert split.roles["optimizer state"] == 2 * blocks(*WEIGHTS) + steps
    assert split.fixed_bytes == 3 * blocks(*WEIGHTS) + steps
    assert split.peak_bytes == sum(split.roles.values())


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_that_the_file_has_made_counts_as_one_that_is_made_here(kind):
    """`optimizer = Adam(model.parameters())` in a file: its state was missing from the prediction."""

    def file():
        target = perceptron(4)
        made = kind(target.model.parameters(), 1e-3)
        return Target("file", target.model, target.batches, target.loss, lambda _: made)

    def made_here():
        return perceptron(4, optimizer=lambda m: kind(m.parameters(), 1e-3))

    found = predict(file, precision("fp32")).split
    assert found == predict(made_here, precision("fp32")).split
    assert ("optimizer state" in found.roles) == (kind is torch.optim.Adam)
    assert found == measured_on_cpu(file)


def test_plain_sgd_needs_no_state():
    split = predict(
        lambda: perceptron(4, optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1)), precision("fp32")
    )
    assert "optimizer state" not in split.split.roles
    assert split.split.fixed_bytes == blocks(*WEIGHTS)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_what_the_forward_keeps_is_what_a_person_computes(name):
    size, low = 512, 4 if name == "fp32" else 2
    split = predict(lambda: perceptron(size), precision(name)).split
    layers = split.layers
    # A linear layer keeps its input: the batch itself, or its cast. Its weight it keeps for the gradient of the
    # input, which nobody asks of the first layer; the cast of the second one's is kept. ReLU keeps its output.
    assert layers.get("0", 0) == (0 if name == "fp32" else blocks((size, WIDE), size=2))
    assert layers["1"] == blocks((size, INSIDE), size=low)
    assert layers.get("2", 0) == (0 if name == "fp32" else blocks((CLASSES, INSIDE), size=2))


@pytest.mark.parametrize("size", [4, 64, 1000])
def test_a_prediction_for_fp32_is_what_real_tensors_take(size):
    predicted = predict(lambda: perceptron(size), precision("fp32")).split
    assert predicted == measured_on_cpu(lambda: perceptron(size))


#: Numbers in resnet18's parameters: all, those of its norms, of the last layer, and of the layers up to layer1.
PARAMETERS, NORMS, LAST, FIRST = 11_689_512, 9_600, 513_000, 157_504
#: Of its four layers the channels, how many times smaller their images are than the batch's, and their convolutions.
LAYERS = ((64, 4, 4), (128, 8, 5), (256, 16, 5), (512, 32, 5))


def resnet18(batch, side):
    import torchvision

    def make():
        data = torch.zeros(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
        loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
        momentum = lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)  # noqa: E731
        return Target("resnet18", torchvision.models.resnet18(), [data], loss, momentum)

    return make


def kept_by_resnet18(image, size, layers):
    """Return the bytes that the forward keeps up to the last of some layers.

    A norm keeps its input, which is a convolution's output. An in-place ReLU keeps its output, which the next
    convolution keeps too; after a norm that leads to no ReLU nothing is kept. Pooling keeps indices of eight bytes.
    """
    stem = 2 * image(64, 2) + image(64, 4) + image(64, 4) // size * 8
    cast = 0 if size == 4 else image(3, 1)
    return stem + cast + sum(image(wide, small) * (convs + 4) for wide, small, convs in layers)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("batch", "side"), [(128, 224), (2, 64)])
def test_resnet18_needs_what_a_hand_counts(name, batch, side):
    """Images decide the peak of a large batch, as the backward begins; in a small one it comes with the gradients."""
    size = 4 if name == "fp32" else 2

    def image(channels, smaller):
        return batch * channels * (side // smaller) ** 2 * size

    lasting = 2 * 4 * PARAMETERS + 4 * batch * 3 * side**2  # parameters, momentum, batch
    if batch > 2:
        casts = 0 if size == 4 else 2 * (PARAMETERS - NORMS)
        wide, small, _ = LAYERS[-1]  # one gradient enters its last norm, another leaves it
        expected = casts + kept_by_resnet18(image, size, LAYERS) + 4 * LAST + 2 * image(wide, small)
    else:
        casts = 0 if size == 4 else 2 * FIRST
        wide, small, _ = LAYERS[0]
        gradients = 4 * (PARAMETERS - FIRST)
        expected = casts + kept_by_resnet18(image, size, LAYERS[:1]) + gradients + 3 * image(wide, small)
    found = predict(resnet18(batch, side), precision(name)).split
    assert found.peak_bytes == pytest.approx(lasting + expected, rel=0.01)
    assert found.moment == "backward"


def test_a_model_that_looks_at_its_numbers_is_run_on_real_ones():
    def make():
        target = perceptron()
        inner = target.loss

        def loss(model, batch):
            return inner(model, batch) * (2.0 if float(batch[0].sum()) > 0 else 1.0)

        return Target("looking", target.model, target.batches, loss, target.optimizer)

    found = predict(make, precision("fp16"))
    assert "real tensors" in found.note
    assert found.split.peak_bytes > 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.conv(x)))).mean((-1, -2)))


CASES = {
    "blocks": (lambda: nn.Sequential(*[Block() for _ in range(3)]), (8, 32, 64)),
    "images": (Image, (8, 3, 16, 16)),
}


def _square(model, batch):
    return model(batch).float().square().mean()


@pytest.mark.skipif(
    not CAN_DIFFERENTIATE, reason="this torch is built without CUDA, so it has no CUDA autograd"
)
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_what_the_forward_keeps_is_what_cudas_own_autocast_keeps(case, name):
    """Fake CUDA tensors under torch's CUDA autocast; its backward needs a driver, so the forward is compared."""
    build, shape = CASES[case]
    chosen = precision(name)
    torch.manual_seed(0)
    model, batch = build(), torch.randn(shape)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        batch = fake(model, batch, mode, "cuda")
        watch = Watch(model)
        with watch:
            watch.known(model.parameters(), "parameters")
            watch.known(model.buffers(), "buffers")
            watch.known([batch], "batch")
            if chosen.dtype is None:
                loss = _square(model, batch)
            else:
                with cuda_autocast(chosen.dtype):
                    loss = _square(model, batch)
            watch.ledger.forward_end = len(watch.ledger.events)
    cuda = watch.ledger.split().layers
    torch.manual_seed(0)
    ours = predict(lambda: Target(case, build(), [torch.randn(shape)], _square), chosen).split.layers
    assert loss.device.type == "cuda"
    # cuDNN's batch norm has a reserve of a few bytes that other back ends do not.
    assert {name: ours[name] for name in ours} == pytest.approx(cuda, abs=BLOCK)


def test_the_largest_batch_fits_and_one_more_does_not():
    chosen = precision("fp16")
    room = 3_000_000
    found = fitting_batch(perceptron, chosen, room)
    assert predict(perceptron, chosen, batch_size=found).split.peak_bytes <= room
    assert predict(perceptron, chosen, batch_size=found + 1).split.peak_bytes > room
    assert fitting_batch(perceptron, chosen, 1000) == 0


def test_checkpointing_keeps_less():
    def make():
        return Target("blocks", CASES["blocks"][0](), [torch.randn(64, 32, 64)], _square)

    plain = predict(make, precision("fp16")).split
    saving = predict(lambda: put(make(), Case(0, checkpointing=True)), precision("fp16")).split
    assert saving.peak_bytes < 0.7 * plain.peak_bytes
    assert sum(saving.layers.values()) < 0.3 * sum(plain.layers.values())


def test_the_peak_is_found_in_a_ledger():
    ledger = Ledger([Allocation(1000, "parameters"), Allocation(512, "activations", "a", "forward"),
                     Allocation(513, "activations", "b", "forward"), Allocation(1, "temporaries", "", "backward")],
                    [1, 2, 3, -3, 4, -2, -4], begin=1, forward_end=4)  # fmt: skip
    split = ledger.split()
    assert split.peak_bytes == 1024 + 512 + 1024
    assert split.roles == {"parameters": 1024, "temporaries": 1024, "activations": 512}
    assert split.layers == {"a": 512}
    assert split.fixed_bytes == 1024
