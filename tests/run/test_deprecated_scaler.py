"""torch.cuda.amp.GradScaler(), which is deprecated and still common: torch wraps it in a library's file, as we do."""

import pytest
from scripts_run import watched

#: It trains in fp16 on a GPU, and on a CPU as torch's autocast does there, in bf16.
EITHER = """
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.cuda.amp.GradScaler(enabled=True)
for _ in range(3):
    x = torch.randn(16, 8, device=device)
    with torch.autocast(device.type, enabled=True):
        loss = model(x).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale())
"""
#: It has no device of its own: autocast is a CPU's, and the scaler is CUDA's.
ON_CPU = EITHER.replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', 'torch.device("cpu")')
MADE = 1 + EITHER.splitlines().index("scaler = torch.cuda.amp.GradScaler(enabled=True)")
#: It trains in bf16 on a GPU, with a scale that nothing needs.
USELESS = EITHER.replace("device.type, enabled=True", "device.type, dtype=torch.bfloat16")


def ran(tmp_path, text, *options):
    """Run a script; every line that is named is the script's own."""
    script = tmp_path / "train.py"
    script.write_text(text)
    done = watched(script, options=options)
    named = {(site.file, bool(site.line)) for one in done.report.findings for site in one.sites if site.file}
    assert named <= {("train.py", True)}
    places = {thing.file for thing in done.report.loop.things}
    assert places == {"train.py"}
    return done


def test_a_script_for_a_gpu_or_none_is_audited_as_on_the_gpu_where_that_is_asked_for(tmp_path):
    done = ran(tmp_path, EITHER, "--as-cuda")
    report = done.report
    assert done.numbers("scale") == [2.0**16]  # it is alive, as on a GPU
    assert (report.precision, report.loop.first_scales) == ("fp16", {"scaler 1": 2.0**16})
    assert (report.loop.steps, report.loop.skipped, report.findings) == (3, 0, ())


@pytest.mark.parametrize("text", [EITHER, ON_CPU], ids=["which there is", "a CPU"])
def test_a_scaler_beside_a_cpus_autocast_stays_switched_off_and_is_no_useless_scale(tmp_path, text):
    done = ran(tmp_path, text)
    assert done.numbers("scale") == [1.0]  # as torch itself leaves it
    assert (done.report.precision, done.report.loop.first_scales) == ("bf16", {})
    assert [(one.code, one.origin.line) for one in done.report.findings] == [("AMP410", MADE)]


def test_a_useless_scale_is_found_where_the_script_makes_its_scaler(tmp_path):
    done = ran(tmp_path, USELESS, "--as-cuda")
    assert done.numbers("scale") == [2.0**16]
    assert [(one.code, one.origin.line) for one in done.report.findings] == [("AMP205", MADE)]
