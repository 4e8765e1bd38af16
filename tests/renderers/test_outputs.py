"""The table of a forward's outputs in each precision, from which a person chooses."""

from dataclasses import replace

import pytest
from examples import clean

from ampcheck.renderers import RENDERERS
from ampcheck.renderers.sections.tables import outputs
from ampcheck.values.agreement import LOGITS, NUMBERS, Agreement
from ampcheck.values.outcome import Outcome


def chosen_from():
    logits = Agreement("output.logits", LOGITS, 0.1, cosine=0.995, top1=0.5, top5=1.0, kl=0.0123)
    state = Agreement("output.state", NUMBERS, 0.001)
    ways = {"fp16-weights": (logits, state), "bf16-autocast": (state,)}
    outcomes = {name: Outcome(0, loss=0.0, loss_error=0.0, outputs=held) for name, held in ways.items()}
    return replace(clean(), outcomes=outcomes)


def test_each_way_and_output_has_a_row_with_its_own_measures():
    (table,) = outputs(chosen_from()).blocks
    assert [column.title for column in table.columns] == [
        "precision", "output", "error", "cosine", "SNR", "top-1", "top-5", "KL",
    ]  # fmt: skip
    assert list(table.rows) == [
        ("fp16 weights", "output.logits", "10 %", "0.995", "20.0 dB", "50 %", "100 %", "0.012"),
        ("fp16 weights", "output.state", "0.10 %", "1", "60.0 dB", "", "", ""),
        ("bf16 autocast", "output.state", "0.10 %", "1", "60.0 dB", "", "", ""),
    ]
    assert outputs(clean()) is None


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_it_stands_in_every_format_that_is_read(form):
    shown = RENDERERS[form](chosen_from())
    assert "Outputs" in shown
    assert "60.0 dB" in shown
