"""One word per concept: words that were replaced do not come back, in names or in sentences."""

import ast
import functools
import re
from pathlib import Path

from readme import MANUAL, README

import ampcheck

PACKAGE = Path(ampcheck.__file__).parent
#: Names of variables, functions, classes, arguments and fields, and the word to use.
NAMES = {
    "Book": "StepRecord",
    "Standing": "LoopProgress",
    "Instead": "ScaleOrPlace",
    "Blamed": "Culprit",
    "Thing": "LoopObject",
    "Leap": "ErrorJump",
    "Course": "TrainingCurve or TrainingSetup",
    "Manner": "WatchOptions",
    "Meanwhile": "MachineLoad",
    "Taken": "Allocation",
    "book": "step_record",
    "garbage": "gc_pause",
    "standing": "progress",
    "remarks": "caveats",
    "complaint": "assertion_text",
    "told": "what the function returns",
    "cure": "remedy_lines",
    "yardstick": "rounding_baseline",
    "at_ease": "matches_reference",
    "leap": "error_jump",
    "leaps": "error_jumps",
    "manner": "watch_options",
    "give_in": "abandon",
    "deafen": "stop_listening",
    "ears": "listeners",
    "asleep": "paused",
    "twin": "reference",
    "flushed": "underflowed",
    "vanished": "underflow",
}
#: Words of sentences that people read, and what to write.
SENTENCES = {
    r"\bflushed\b|lost to zero|\bvanish": "underflows",
    r"(elements?|gradients?) (that )?((is|are|was|were|would be) )?(still )?los[te]\b": "underflow",
    r"[Ll]ost (forward|backward|below)|`lost |\} lost\b|would lose": "underflow",
    r"FP32 beside|\btwins?\b": "the reference, or compared with FP32",
    r"by design": "normal",
    r"not to be judged": "inconclusive",
    r"\btold\b(?! apart)|is told so": "reported, printed",
    r"reached sites|reference amax": "spreads to, largest FP32 value",
    r"expected a place to write": "cannot write FILE",
    r"all the same\b": "still",
    r"\bmended\b|\bmend\b": "fixed",
    r"\bat ease\b|\basleep\b|\byardstick\b|\bcure\b": "plain words",
    r"is to blame": "causes it",
    r"of (its|their|ampcheck's) own making|an error of ampcheck's own": "an internal error of ampcheck",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def names(tree):
    """Return every name that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def sentences(tree):
    """Return every string of at least two words: messages, help, and docstrings, which are manuals of rules too."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"[a-z] [a-z]", node.value)
        ):
            yield node.value


@functools.cache
def trees():
    return {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def test_no_name_uses_a_word_that_was_replaced():
    found = [
        (str(path), name)
        for path, tree in trees().items()
        for name in names(tree)
        if name.strip("_") in NAMES
    ]
    assert not found, {name: NAMES[name.strip("_")] for _, name in found}


def test_no_sentence_has_words_that_were_replaced():
    texts = [(str(path), text) for path, tree in trees().items() for text in sentences(tree)]
    texts += [("README.md", line) for line in README.splitlines()]
    texts += [
        (page.name, line) for page in MANUAL.glob("*.md") for line in page.read_text("utf-8").splitlines()
    ]
    texts += [
        (asset.name, line)
        for asset in PACKAGE.glob("renderers/page/assets/*.js")
        for line in asset.read_text("utf-8").splitlines()
    ]
    found = [
        (where, text, say) for where, text in texts for bad, say in SENTENCES.items() if re.search(bad, text)
    ]
    assert not found


def test_the_glossary_has_the_words_in_use():
    glossary = (MANUAL / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([a-z -]+) \|", glossary, re.MULTILINE)[1:]
    everything = "\n".join(path.read_text(encoding="utf-8") for path in FILES).lower()
    assert len(words) == len(set(words)) >= 14
    for word in words:
        assert word in everything, f"{word} is explained and not used"


def test_the_check_can_fail():
    tree = ast.parse("def told(twin): flushed = 'FP32 beside it is lost to zero'")
    assert {"told", "twin", "flushed"} <= set(names(tree))
    assert any(re.search(r"FP32 beside|\btwins?\b", text) for text in sentences(tree))
