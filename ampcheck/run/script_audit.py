"""The watch over a script that is audited: from when it first imports torch until it has done enough steps."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ampcheck.run.child_processes import Children, WatchOptions, joined
from ampcheck.run.import_hooks import after_import
from ampcheck.run.launch_script import Ended
from ampcheck.run.limit import Limit
from ampcheck.values.report import Report

if TYPE_CHECKING:
    from ampcheck.run.recipe_calls import TrainingCalls
    from ampcheck.run.session import Session


class ScriptAudit:
    """A script, watched up to a limit."""

    def __init__(self, watch_options: WatchOptions, limit: tuple[int, float], recipe: str = "") -> None:
        """Prepare to watch; the limit, of steps and seconds, runs from now on. A recipe is tried at the end."""
        self._recipe = recipe
        self.calls: TrainingCalls | None = None
        self._watch_options = watch_options
        self._children = Children(watch_options)
        self._session: Session | None = None
        self._context: Any = None
        self._notes: tuple[str, ...] = ()
        self._running = Limit(*limit)

    @property
    def stopped(self) -> str:
        """Return what stopped the script, '' where it ended by itself."""
        return self._running.reached

    def over(self, run: Callable[[], Ended]) -> Ended:
        """Run the script under the watch."""
        stop = after_import("torch", self._begin)
        ended = Ended(0)
        try:
            ended = run()
        finally:
            stop()
            self._running.end()
            self._end(ended.error)
        return ended

    def _begin(self) -> None:
        from ampcheck.run.recipe_calls import TrainingCalls

        self._session = self._watch_options.session(self._running.stepped)
        self.calls = TrainingCalls(self._recipe)
        self.calls.follow(self._session)
        self._session.watcher.started = self._children.follow
        self._context = self._session.watching()
        self._context.__enter__()

    def _end(self, error: BaseException | None) -> None:
        if self._session is not None and error is not None:
            self._session.watcher.raised(error)
            self._notes = (
                f"the script ended with {type(error).__name__}: the report covers what ran before",
            )
        if self._context is not None:
            self._context.__exit__(None, None, None)

    def report(self, notes: tuple[str, ...] = ()) -> Report | None:
        """Return what was seen, of this process and of those that it started; None where nothing was watched."""
        session = self._session
        if session is None:
            return None
        others = self._children.reports()
        session.watcher.children -= len(others)
        own = session.report(self._watch_options.target, (*notes, *self._notes))
        return joined(own, others)
