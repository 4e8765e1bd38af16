"""Where numbers go wrong inside of a library, the lines that are printed heal them from the user's own code."""

import pytest
import torch

from ampcheck.diagnose.rules.installed import in_installed, own_line
from ampcheck.renderers import terminal
from ampcheck.run.session import Session
from ampcheck.values.settings import Schedule

transformers = pytest.importorskip("transformers")
PART = "encoder.block.0.layer.1.DenseReluDense"


def too_large():
    """Return a T5 whose first feed-forward exceeds fp16."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    net = transformers.T5ForConditionalGeneration(config)
    for name in ("wi", "wo"):
        net.get_submodule(f"{PART}.{name}").weight.data.mul_(2e3)
    return net


def trains(prepared):
    session = Session(Schedule(slowest=1e9), as_cuda=True)  # also where the first step imports for long
    with session.watching():
        net = too_large()
        prepared(net)
        optimizer, scaler = torch.optim.SGD(net.parameters(), lr=1e-4), torch.amp.GradScaler("cuda")
        for _ in range(3):
            ids = torch.randint(2, 64, (4, 16))
            with torch.autocast("cuda", dtype=torch.float16):
                loss = net(input_ids=ids, labels=ids).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return session.report("train.py")


@pytest.mark.filterwarnings("ignore")
def test_the_lines_that_are_printed_for_a_librarys_module_heal_it():
    sick = trains(lambda _: None)
    (found,) = (finding for finding in sick.findings if finding.code == "AMP101")
    assert in_installed(found.origin.file)
    assert f'.get_submodule("{PART}.wo")  # once, before training' in found.fix[0]
    holder = found.origin.module.partition(".")[0]
    healed = trains(lambda net: exec("\n".join(found.fix), {holder: net, "torch": torch}))
    assert not [finding for finding in healed.findings if finding.code == "AMP101"]


@pytest.mark.filterwarnings("ignore")
def test_the_lines_leave_a_module_all_that_it_is_called_with():
    sick = trains(lambda _: None)
    (found,) = (finding for finding in sick.findings if finding.code == "AMP101")
    got = []

    class Part(torch.nn.Module):
        def forward(self, x, lengths, mask=None, *, first=False):
            got.append((x.dtype, lengths, mask if mask is None else mask.dtype, first))
            return x

    holder = torch.nn.Module()
    holder.get_submodule = lambda _name: part
    part = Part()
    exec("\n".join(found.fix), {found.origin.module.partition(".")[0]: holder, "torch": torch})
    part(torch.ones(2).half(), 3, mask=torch.ones(2).bool())
    part(torch.ones(2).half(), [3], torch.ones(2).bfloat16(), first=True)
    assert got == [(torch.float32, 3, torch.bool, False), (torch.float32, [3], torch.float32, True)]


@pytest.mark.filterwarnings("ignore")
def test_the_first_screen_names_the_users_own_line_too():
    report = trains(lambda _: None)
    place = own_line(report)
    assert place.rpartition("/")[2].startswith("test_installed.py:")
    assert f"which {place} runs" in " ".join(terminal.render(report, width=300).split())


def test_what_is_installed_is_told_by_where_its_path_begins():
    assert in_installed("timm/models/vision_transformer.py")
    assert not in_installed("models/vision_transformer.py")
    assert not in_installed("")
