"""The fixture `amp_audit`: audits what a test has built, and tells the session what came of it."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ampcheck.compare.baseline import setting
from ampcheck.compare.config import Config, read_value
from ampcheck.compare.select import select, source
from ampcheck.errors import AmpcheckError
from ampcheck.pytest_plugin.ending import stand_by
from ampcheck.pytest_plugin.expectations import Audited
from ampcheck.pytest_plugin.marking import Wanted, wanted
from ampcheck.pytest_plugin.reports import save_all
from ampcheck.pytest_plugin.summary import FIRST, properties
from ampcheck.targets.spec import Target, no_loss
from ampcheck.targets.userfile import INSTALLED


def auditor(request: pytest.FixtureRequest) -> Callable[..., Audited]:
    """Return what a test gets as `amp_audit`."""
    node: pytest.Item = request.node
    try:
        asked = wanted(node.config, node.path, node.iter_markers("ampcheck"))
    except AmpcheckError as error:
        pytest.fail(explained(error), pytrace=False)
    # A list of one in the marker is no parameter.
    precision = getattr(request, "param", asked.precisions[0])
    return _auditor(node, asked, precision)


def _auditor(node: pytest.Item, asked: Wanted, default: str) -> Callable[..., Audited]:
    def amp_audit(  # noqa: PLR0913 - what can be said of an audit, by name
        model: Any,
        batch: Any,
        loss: Callable[[Any, Any], Any] = no_loss,
        *,
        precision: str | None = None,
        scale: float | str | None = None,
        steps: int | None = None,
        verify: bool | None = None,
        optimizer: Callable[[Any], Any] | None = None,
        mode: str | None = None,
        cast: str | None = None,
    ) -> Audited:
        """Audit `loss(model, batch)` in FP32 and in low precision; a list of batches is one batch a step.

        Without a loss, or with mode="infer", it is `model(batch)` that is audited, forward alone.
        """
        __tracebackhide__ = True
        batches: Sequence[Any] = batch if isinstance(batch, list) else [batch]
        file = _file(type(model), node.config.rootpath)
        target = Target(
            type(model).__name__, model, batches, loss, optimizer, file=file, infers=loss is no_loss
        )
        steps = steps or (len(batches) if isinstance(batch, list) else None)
        given = {"precision": precision or default, "scale": scale, "steps": steps, "verify": verify}
        given |= {"mode": mode, "cast": cast}
        failure = ""
        try:
            said = {
                name: read_value(name, value, "amp_audit")
                for name, value in given.items()
                if value is not None
            }
            config = asked.config.overridden(said)
            result, gap = audited(node, target, config, (_label(node), [node.nodeid]))
        except AmpcheckError as error:
            failure = explained(error)
        if failure:
            pytest.fail(failure)
        if gap:
            raise AssertionError(gap)
        if asked.strict:
            result.assert_safe()
        return result

    amp_audit.__qualname__ = amp_audit.__name__  # as tracebacks show it
    return amp_audit


def audited(
    node: pytest.Item, target: Target, config: Config, known_as: tuple[str, list[str]]
) -> tuple[Audited, str]:
    """Audit a target for a test, let the session know what came of it, and say what its baseline does not.

    It is known by a name in the baseline, and by the words after `pytest` that run it.
    """
    from ampcheck.run.audit import audit

    report, gap = select(audit(target, config.settings), config, source), ""
    if config.baseline is not None:
        from ampcheck.pytest_plugin.ratchet import hold

        name = f"{known_as[0]} {setting(report)}"
        report, gap = hold(node.config, report, config.baseline, name, known_as[1])
    node.user_properties.extend(properties(report))  # first: what follows may find no room for its files
    stand_by(node.config, node)
    folder = node.config.option.ampcheck_report
    if folder is not None:
        save_all(report, node.config.invocation_params.dir / folder, f"{known_as[0]} {report.precision}")
    return Audited(report, config.fail_on), gap


def _label(node: pytest.Item) -> str:
    """Return what an audit of a test is called in a baseline: the test, and which of its audits from the second on."""
    number = sum(name == FIRST for name, _ in node.user_properties) + 1
    return node.nodeid if number == 1 else f"{node.nodeid} #{number}"


def explained(error: AmpcheckError) -> str:
    """Return what went wrong, where, and what would help."""
    return "\n".join([str(error), *(f"  {line}" for line in error.hint.splitlines())])


def _file(kind: type, root: Path) -> Path | None:
    """Return the file of the project that defines a class: a patch must not be for what is installed."""
    try:
        path = Path(inspect.getsourcefile(kind) or "")
    except (TypeError, OSError):
        return None
    inside = path.is_relative_to(root) and not any(part in INSTALLED for part in path.parts)
    return path if inside else None
