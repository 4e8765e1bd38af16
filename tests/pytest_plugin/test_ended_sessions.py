"""A session that a signal ends says what its audits came to before it goes."""

import os
import signal
import subprocess
import textwrap

import forked
import pytest

SUITE = textwrap.dedent(
    """
    import multiprocessing, os, signal, time
    import pytest, torch
    from torch import nn

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def audited(amp_audit):
        amp_audit(nn.Linear(4, 2), (torch.randn(2, 4), torch.randint(0, 2, (2,))), loss)

    def test_before(amp_audit):
        audited(amp_audit)

    def test_child():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    @pytest.mark.parametrize("number", [1])
    def test_ends(amp_audit, capfd, number):
        audited(amp_audit)
        print("what the test prints is its own")
        os.kill(int(os.environ.get("ENDS", os.getpid())), getattr(signal, os.environ["HOW"]))
        time.sleep(30)
    """
)


def ended(folder, how, *words):
    (folder / "test_it.py").write_text(SUITE)
    return subprocess.run(
        [*forked.python(), "-m", "pytest", "-p", "no:cacheprovider", *words, "test_it.py"],
        check=False,
        cwd=folder,
        env=os.environ | {"HOW": how},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_a_session_has_its_audits_said_first(tmp_path, how):
    run = ended(tmp_path, how)
    assert run.returncode == -getattr(signal, how)
    _, told, rest = run.stdout.partition("ampcheck: a signal ends this session; its audits so far:")
    assert told
    assert "2 audits" in rest
    assert "test_it.py::test_before" in rest
    assert "test_it.py::test_ends[1]" in rest
    assert "its own" not in run.stdout
    assert run.stdout.count("ampcheck: a signal") == 1


def test_the_audits_of_workers_are_said_by_the_session_that_a_signal_ends(tmp_path):
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text(
        "import os\ndef pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput'):\n        os.environ['ENDS'] = str(os.getpid())\n"
    )
    run = ended(tmp_path, "SIGTERM", "-n", "1")
    assert run.returncode == -signal.SIGTERM
    assert "1 audit" in run.stdout
    assert "test_it.py::test_before" in run.stdout


def test_an_audit_whose_files_find_no_room_is_in_the_summary(tmp_path):
    (tmp_path / "full").write_text("no folder")
    run = ended(tmp_path, "SIGTERM", "-k", "before", "--ampcheck-report", "full/out")
    assert "1 failed" in run.stdout
    assert "ampcheck: 1 audit" in run.stdout
