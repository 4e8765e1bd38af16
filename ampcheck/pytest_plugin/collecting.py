"""Targets as tests: `pytest --ampcheck model.py` makes a test of each target in a file and each precision."""

import inspect
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.compare.config import Config
from ampcheck.errors import AmpcheckError, TargetError
from ampcheck.pytest_plugin.auditing import audited, explained
from ampcheck.pytest_plugin.marking import wanted
from ampcheck.pytest_plugin.options import given
from ampcheck.targets.scope import MODEL_NAMES
from ampcheck.targets.spec import Options, parse_spec
from ampcheck.targets.userfile import import_file, shown

_OPTION = "--ampcheck"


class TargetCollection:
    """Collects the targets that were named, and those in files of the patterns asked for."""

    def __init__(self, config: pytest.Config) -> None:
        """Let pytest look into the files that were named."""
        self._named = _named(given(config, "ampcheck"))
        self._patterns = given(config, "files")
        self._tests = config.getini("python_files")
        _aim(config, self._named)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the targets of a file that was asked for."""
        if file_path in self._named or _like(file_path, self._patterns):
            names = self._named.get(file_path, [])
            return TargetFile.from_parent(parent, path=file_path, names=names)
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makemodule(self, module_path: Path) -> Generator[None, object, object]:
        """Keep pytest from looking for test functions in a file only because it was named for its targets."""
        module = yield
        return None if module_path in self._named and not _like(module_path, self._tests) else module


class TargetFile(pytest.File):
    """A file that defines models to audit."""

    def __init__(self, *, names: list[str], **rest: Any) -> None:
        """Keep the names that were asked for; none means all of them."""
        super().__init__(**rest)
        self._names = names

    def collect(self) -> Iterable[pytest.Item]:
        """Return an item for each target and precision; the file is run to see what is in it."""
        try:
            return [item for name, value in self._targets().items() for item in self._items(name, value)]
        except AmpcheckError as error:
            raise self.CollectError(explained(error)) from error

    def _targets(self) -> dict[str, Any]:
        """Return the targets by name, with what the file holds under it."""
        with _threads_wait_passively():
            import torch  # noqa: F401 - whoever loads it first decides how its threads wait
        from ampcheck.targets.listing import offered

        user = import_file(self.path)
        for mark in _marks(user.module):
            self.add_marker(mark)
        names = self._names or list(offered(user))
        if not names:
            raise TargetError("no target found; define model, batch and loss", where=self.name)
        return {name: getattr(user.module, name.partition(".")[0], None) for name in names}

    def _items(self, name: str, value: Any) -> Iterator[pytest.Item]:
        own = _marks(value)
        markers = [mark.mark for mark in own if mark.name == "ampcheck"]
        asked = wanted(self.config, self.path, [*markers, *self.iter_markers("ampcheck")])
        for precision in asked.precisions:
            config = asked.config.overridden({"precision": precision})
            item = TargetItem.from_parent(
                self, name=f"{name}[{precision}]", target=name, line=_line(value), asked=config
            )
            for mark in own:
                item.add_marker(mark)
            yield item


class TargetItem(pytest.Item):
    """The audit of one target in one precision; it fails as `assert_safe` does."""

    def __init__(self, *, target: str, line: int | None, asked: Config, **rest: Any) -> None:
        """Keep what to load from the file and how to audit it."""
        super().__init__(**rest)
        self._target = target
        # As the command line names it: the model of a file that has one needs no name.
        self._spec = shown(self.path) if target in MODEL_NAMES else f"{shown(self.path)}:{target}"
        self._line = line
        self._asked = asked

    def runtest(self) -> None:
        """Build the target afresh, audit it, and expect it to be safe."""
        import torch

        from ampcheck.targets import load

        options = Options(device="cuda" if torch.cuda.is_available() else "cpu")
        failure = ""
        try:
            target = replace(load(f"{self.path}:{self._target}", options), name=self._spec)
            result, gap = audited(self, target, self._asked, (self._spec, ["--ampcheck", self._spec]))
        except AmpcheckError as error:
            failure = explained(error)
        if failure:
            pytest.fail(failure, pytrace=False)
        if gap:
            raise AssertionError(gap)
        result.assert_safe()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what to print: of an expectation, what it says."""
        if isinstance(excinfo.value, AssertionError):
            return excinfo.getrepr(style="value")
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the target is defined."""
        return self.path, self._line, self.name


def _named(texts: Iterable[str]) -> dict[Path, list[str]]:
    """Return by file the names to audit in it; no name stands for all of them."""
    found: dict[Path, list[str]] = {}
    for text in texts:
        spec = parse_spec(text)
        if spec.kind != "file":
            raise TargetError(f"expected FILE.py or FILE.py:NAME, got {text!r}", where=_OPTION)
        found.setdefault(Path(spec.source), []).extend([spec.name] if spec.name else [])
    return found


def _aim(config: pytest.Config, files: Iterable[Path]) -> None:
    """Have pytest collect the files: nothing else where they are all that its command line names."""
    typed = any(word.partition("=")[0] == _OPTION for word in config.invocation_params.args)
    if typed and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    base = config.invocation_params.dir
    there = {(base / word.partition("::")[0]).resolve() for word in config.args}
    config.args.extend(str(file) for file in files if file not in there)


def _like(path: Path, patterns: Iterable[str]) -> bool:
    return any(path.match(pattern) for pattern in patterns)


def _marks(value: Any) -> list[pytest.MarkDecorator]:
    """Return the marks on a module, a class or a function."""
    marks = getattr(value, "pytestmark", None) or []
    listed = marks if isinstance(marks, list) else [marks]
    return [getattr(pytest.mark, mark.name)(*mark.args, **mark.kwargs) for mark in listed]


def _line(value: Any) -> int | None:
    """Return the line, from 0 on, in which a function or class is defined."""
    try:
        return inspect.getsourcelines(value)[1] - 1
    except (TypeError, OSError):
        return None


@contextmanager
def _threads_wait_passively() -> Iterator[None]:
    """Let threads made inside sleep while they wait: workers that share cores would cost each other minutes."""
    given_before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        yield
    finally:
        if given_before is None:
            del os.environ["OMP_WAIT_POLICY"]
