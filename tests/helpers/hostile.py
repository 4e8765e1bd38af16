"""What someone hostile may call a module, an operation, a file or a rule, and a report made of nothing else."""

from dataclasses import replace

from builders import Layer, finding, report

from ampcheck.diagnose.verdict import judged_by_trace
from ampcheck.values.findings import How, Severity, Suppressed
from ampcheck.values.loop import Cause, Event, Kind, Loop, LoopObject, ScaleEvent
from ampcheck.values.outcome import Outcome
from ampcheck.values.plan import Claim, Plan, ScalerPlan, Tried
from ampcheck.values.report import Report
from ampcheck.values.trace import Failure, Phase, Site

#: Each with a word that tells it from all others, so that it can be looked for in what is written.
NAMES = (
    "<script>alert('n01')</script>",
    "</details></style></svg><img src=x onerror=alert(/n02/)>",
    "n03\n::error file=a.py,line=1::injected\n::stop-commands::x",
    "%0A::error::n04%25",
    "\x1b[31mn05\x1b[0m\x07\x00",
    "```\nn06 ~~~ ` `` *bold* _em_ [n06](javascript:alert(1))",
    "| n07 | cell \\| \\",
    "\"n08\" & 'q' &amp; &lt;b&gt; ]]> <!-- --> <?xml?>",
    "=cmd|' /C calc'!A0 n09",
    "@here #1 www.n10.example https://n10.example/ $x$ :tada:",
    "n11\u202eevil\u2028line\u2029\u200b\udc80\ufffe",
    "# n12\r- item\r\n1. one\n> quote\n---",
    "a,b:c%3A n13 ../../../etc/passwd?x#y",
    "{0} {n14} ${{ secrets.X }}",
)


def hostile_loop() -> Loop:
    """Return a loop in which every text is hostile, and every number that may be."""
    scales = (65536.0, float("inf"), 0.0, float("nan"), -1.0, 5e-324, 1.7e308)
    events = [
        ScaleEvent(-5 + 10**9 * index, label, scale, 1 / (scale or 1), index % 2 == 0, cause)
        for label, scale in zip(NAMES, scales * 2, strict=True)
        for index, cause in enumerate((None, Cause(label, label, label, label, label, -1, 3)))
    ]
    event = Event(Kind.CLIP, NAMES[0], NAMES[1], NAMES[2:4], NAMES[4], file=NAMES[5], code=NAMES[6])
    return Loop(
        rounds=((event,),),
        order=((0, 3),),
        things=tuple(LoopObject(name, name, {name: name, "live": True}, name, 3) for name in NAMES),
        scales=tuple(events),
        first_scales=dict(zip(NAMES, scales, strict=False)),
        steps=10,
        recorded=(0, 2),
    )


def hostile() -> Report:
    """Return a report in which every text is hostile."""
    made = report([Layer(name, name, name, line=index) for index, name in enumerate(NAMES)])
    sites = [site._replace(file=site.module, slot=site.module) for site in made.low.sites]
    marks = [
        finding(
            site,
            name,
            name=name,
            kind=name,
            message=name,
            severity=severity,
            ranks=NAMES[:2],
            follows=NAMES[3:6],
            fix=NAMES,
            numbers={name: 1.5, "tags": 2.0},
        )
        for site, name, severity in zip(sites, NAMES, list(Severity) * len(NAMES), strict=False)
    ]
    low = replace(
        made.low,
        not_audited={name: index for index, name in enumerate(NAMES)},
        failure=Failure(*NAMES[:5], line=3),
    )
    nowhere = Site("", "", "", Phase.STATE, "")
    made = replace(
        made,
        target=NAMES[0] + NAMES[2],
        low=low,
        suppressed=tuple(
            Suppressed(mark, how, NAMES[2], NAMES[6]) for mark, how in zip(marks, How, strict=False)
        ),
        findings=(*marks, finding(nowhere, sites=()), finding(nowhere)),
        notes=NAMES,
        environment=dict(zip(NAMES, NAMES, strict=True)) | {"device": NAMES[4], "torch": NAMES[2]},
        outcomes={"settled": Outcome(3, raised=NAMES[5]), "bf16": Outcome(0, raised=NAMES[6])},
        plan=Plan(NAMES[1], NAMES, NAMES, ScalerPlan(3.0)),
        claims=tuple(Claim(name, Tried.NOT_TRIED, name, name) for name in NAMES),
        patch="--- a/x\n+++ b/x\n" + "\n".join(f"+{name}" for name in NAMES),
        advice=NAMES,
        loop=hostile_loop(),
    )
    return judged_by_trace(made)
