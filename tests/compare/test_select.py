"""Which findings count: every one is either kept or suppressed, and comments are those Python sees."""

import ast
import random
from dataclasses import replace

import pytest
from builders import finding, report
from examples import cnn
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.compare.config import Config
from ampcheck.compare.select import EXAMPLE, checked, comments, inside, misnamed, names, select
from ampcheck.diagnose.rules import RULES
from ampcheck.diagnose.rules.manual import page
from ampcheck.errors import ConfigError
from ampcheck.values.findings import How

MADE = report(cnn())
SITES = list(MADE.low.sites)
ENTRIES = [*RULES, "AMP", "AMP1", "amp20", *names()]


def test_names_are_those_of_the_manual():
    assert names() == {page(code).name: code for code in RULES}
    assert not any(misnamed(entry) for entry in ENTRIES)


def some_findings(seed):
    draw = random.Random(seed)
    codes = draw.choices(sorted(RULES), k=8)
    return tuple(finding(draw.choice(SITES), code, name=page(code).name) for code in codes)


def covered(code, name, entries):
    """Return whether entries stand for a rule, by spelling out every code that each stands for."""
    spelled = {e.upper() if e.upper() in RULES else names().get(e, e.upper()) for e in entries}
    return any(code == full for short in spelled for full in RULES if full[: len(short)] == short)


@given(st.integers(0, 10**6), st.lists(st.sampled_from(ENTRIES)), st.lists(st.sampled_from(ENTRIES)))
def test_what_counts_is_what_was_selected_and_not_ignored(seed, chosen, ignored):
    made = replace(MADE, findings=some_findings(seed))
    result = select(made, Config(select=tuple(chosen), ignore=tuple(ignored)))
    expected = [
        found
        for found in made.findings
        if (not chosen or covered(found.code, found.name, chosen))
        and not covered(found.code, found.name, ignored)
    ]
    assert list(result.findings) == expected
    everything = [*result.findings, *(held.finding for held in result.suppressed)]
    assert sorted(everything, key=repr) == sorted(made.findings, key=repr)
    again = select(result, Config(select=tuple(chosen), ignore=tuple(ignored)))
    assert again == result


CODE = '''
x = 1  # ampcheck: ignore[AMP101] the reason
text = "# ampcheck: ignore[AMP101] in a string"
y = f(
    x,  # ampcheck: ignore[AMP102,near-overflow] inside
    """
    # ampcheck: ignore[AMP103]
    """,
)
def g(a,
      b):  # ampcheck: ignore[AMP2]: family
    z = a  # type: ignore # ampcheck: ignore[AMP201]
    # ampcheck: ignore[AMP104] alone
    return z
w = 3  # ampcheck: ignore
v = 4  # ampcheck: ignore[AMP999] typo
'''


def test_comments_belong_to_their_statement():
    found = list(comments(CODE))
    good = [(held.first, held.last, held.codes, held.reason) for held in found if not held.mistake]
    assert good == [
        (2, 2, ("AMP101",), "the reason"),
        (4, 9, ("AMP102", "near-overflow"), "inside"),
        (10, 11, ("AMP2",), "family"),
        (12, 12, ("AMP201",), ""),
    ]
    # Python's own parser agrees on where the simple statements lie.
    spans = {
        (node.lineno, node.end_lineno) for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.Assign)
    }
    assert {(2, 2), (4, 9), (12, 12)} <= spans
    assert [(held.line, held.mistake) for held in found if held.mistake] == [
        (
            13,
            "an ampcheck comment on a line of its own does nothing; put it after the code on its line",
        ),
        (
            15,
            "an ampcheck comment was not understood and does nothing; write " + EXAMPLE,
        ),
        (16, "an ampcheck comment does nothing: " + misnamed("AMP999")),
    ]


#: Lines of a file, and whether ampcheck is spoken to on them.
LINES = {
    "x = 1": False,
    "x = 1  # ampcheck: ignore[AMP101] known": True,
    "x = '# ampcheck: ignore[AMP101]'": False,
    "x = 1  # noqa": False,
    "": False,
    "# ampcheck: ignore[AMP101] alone": True,
}


@given(st.lists(st.sampled_from(list(LINES))), st.text(max_size=200))
def test_any_text_is_read_up_to_where_it_is_no_python(lines, rest):
    spoken_to = [number for number, line in enumerate(lines, 1) if LINES[line]]
    assert [held.line for held in comments("\n".join(lines))] == spoken_to
    for held in comments("\n".join([*lines, rest])):
        assert held.line in spoken_to or "ampcheck" in rest


def test_a_comment_suppresses_on_its_line_only():
    site = SITES[0]._replace(file="net.py", line=6)
    elsewhere = site._replace(line=10)
    made = replace(
        MADE, findings=(finding(site, "AMP103"), finding(elsewhere, "AMP103"), finding(site, "AMP201"))
    )
    text = CODE.replace("AMP102,", "AMP103,")
    result = select(made, Config(), {"net.py": text}.get)
    assert [(held.finding, held.how, held.entry, held.reason) for held in result.suppressed] == [
        (made.findings[0], How.COMMENT, "net.py:5", "inside")
    ]
    assert result.findings == made.findings[1:]
    assert [note.partition(": ")[0] for note in result.notes if note not in made.notes] == [
        "net.py:13",
        "net.py:15",
        "net.py:16",
    ]


@pytest.mark.parametrize(
    ("module", "pattern", "expected"),
    [
        ("a.b.c", "a.*", True),
        ("a", "a.*", False),
        ("a.b", "a", True),
        ("ab", "a", False),
        ("blocks.1.attn", "blocks.*.attn", True),
        ("blocks.1.attn.q", "blocks.[01].attn", True),
        ("", "(root)", True),
        ("x", "(root)", False),
        ("", "*", True),
    ],
)
def test_globs(module, pattern, expected):
    assert inside(module, pattern) is expected


def test_codes_of_modules_are_checked():
    with pytest.raises(ConfigError, match=r"enc\*: expected a code"):
        checked(Config(per_module_ignores={"enc*": ("AMP777",)}))
