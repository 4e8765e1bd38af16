"""The watch over the script of `ampcheck run`: from when it first imports torch until its report is written."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.cli import live, output, writing
from ampcheck.cli.live import LiveLine
from ampcheck.cli.several import publish_each, publish_recipes
from ampcheck.compare.select import select, source
from ampcheck.errors import AmpcheckError
from ampcheck.run.child_processes import Children, WatchOptions, joined
from ampcheck.run.endings import Endings
from ampcheck.run.keeping import Corner, Keeper, unfinished
from ampcheck.run.launch_script import Program
from ampcheck.run.progress_line import Numbers, progress
from ampcheck.run.tensorboard import ScalarFile
from ampcheck.run.wishes import NO_WISHES, wishes_of
from ampcheck.saved.report_json import to_json, write
from ampcheck.values.recipes import is_recipe
from ampcheck.values.report import Report
from ampcheck.values.settings import Schedule

if TYPE_CHECKING:
    from ampcheck.inference.script import Forwards
    from ampcheck.run.ranks import Ranks
    from ampcheck.run.recipe_calls import TrainingCalls
    from ampcheck.run.save_batch import Saving
    from ampcheck.run.session import Session

#: Exit status where no training was seen.
NO_TRAINING = 2


class Watched:
    """The watch over a script, from when it first imports torch."""

    def __init__(self, options: argparse.Namespace, program: Program) -> None:
        """Prepare to watch."""
        self._options, self._program = options, program
        schedule = Schedule(
            options.first, options.every, options.only, beside=options.reference, slowest=options.slowest
        )
        named = any("cuda" in word for word in program.arguments)
        script = program.kind == "script" and not options.what_if
        asked = wishes_of(Path(program.name), program.arguments) if script else NO_WISHES
        self._recipe = options.what_if if is_recipe(options.what_if) else ""
        what_if = "" if self._recipe else options.what_if
        self._watch_options = WatchOptions(
            program.shown, schedule, options.as_cuda, named, what_if, asked=asked
        )
        self._children = Children(self._watch_options)
        self._session: Session | None = None
        self._context: Any = None
        self._live = LiveLine() if options.live and live.wanted() else None
        self._sinks = [*([ScalarFile(options.tensorboard)] if options.tensorboard else []), *options.log]
        self._numbers = Numbers()
        self._saving: Saving | None = None
        self._notes: tuple[str, ...] = ()
        self._forwards: Forwards | None = None
        self._calls: TrainingCalls | None = None
        self._broken = ""  #: why nothing could be watched
        self._corner = Corner()
        self._keeper = Keeper(self._partial, self._place)
        self._endings: Endings | None = None

    def begin(self) -> None:
        """Begin to watch; where that fails, the script goes on without."""
        try:
            from ampcheck.inference.script import Forwards
            from ampcheck.run.recipe_calls import TrainingCalls
            from ampcheck.run.save_batch import Saving

            self._forwards, self._calls = Forwards(), TrainingCalls(self._recipe)
            self._session = self._watch_options.session(self._on_step)
            self._calls.follow(self._session)
            self._forwards.follow(self._session.watcher.roots)
            compiler = self._session.watcher.compiler
            self._forwards.compiles = lambda: bool(compiler.asked)
            self._session.watcher.started = self._children.follow
            if self._options.save_batch is not None:
                self._saving = Saving(self._options.save_batch, self._session.watcher)
            self._context = self._session.watching()
            self._context.__enter__()
            self._endings = Endings(self._signalled)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the script's import
            self._broken = f"{type(error).__name__}: {error}"

    def _on_step(self, watcher: Any) -> None:
        """Say where the loop stands; of a job's ranks the first does."""
        if watcher.tape.recorded:
            self._keeper.stir()
        if self._session is None or not self._session.ranks.first:
            return
        if self._live is not None:
            self._live.draw(lambda: progress(watcher).line)
        self._log(watcher)

    def _log(self, watcher: Any) -> None:
        """Give the known numbers to every logger; one that fails is left out from then on, and the script goes on."""
        numbers = list(self._numbers.fresh(watcher)) if self._sinks else []
        for sink in list(self._sinks if numbers else ()):
            try:
                sink.add(numbers)
            except Exception as error:  # noqa: BLE001  # a logger's own
                self._sinks.remove(sink)
                words = f"{type(sink).__name__} failed and gets no more values: {error}"
                print(f"ampcheck: {words}", file=sys.stderr)

    # -- while it runs

    def _partial(self) -> Report:
        """Return what was seen so far."""
        assert self._session is not None  # who stirs is watched
        report = self._session.report(self._program.shown, self._notes)
        return unfinished(select(report, self._options.config, source), self._session.watcher.steps)

    def _place(self) -> Path:
        ranks = self._session.ranks if self._session is not None else None
        rank = ranks.rank if ranks is not None else 0
        return self._kept(rank) or self._corner.file("run.partial.json")

    def _kept(self, rank: int = 0) -> Path | None:
        return writing.kept(self._options.output, self._options.format, rank=rank)

    def _signalled(self, ends: bool) -> None:  # noqa: FBT001  # a callback
        """Publish what was seen so far: the script was shown to end, and maybe it does."""
        if self._session is None or not self._session.watcher.steps:
            return
        self._keeper.write()
        if ends and self._session.ranks.first:
            with contextlib.redirect_stdout(sys.stderr):
                writing.publish(self._partial(), self._options.output, self._options.format, color=False)

    # -- when it has ended

    def end(self, error: BaseException | None) -> None:
        """Stop watching a script that ended with an error, or without."""
        if self._endings is not None:
            self._endings.close()
        self._keeper.close()
        if self._forwards is not None:
            self._forwards.close()
        if self._live is not None:
            self._live.close()
        if self._saving is not None:
            print(f"ampcheck: {self._saving.end()}", file=sys.stderr)
        if error is not None:
            words = f"the script ended with {type(error).__name__}: the report covers what ran before"
            self._notes = (words,)
            if self._session is not None:
                self._session.watcher.raised(error)
        if self._context is not None:
            self._context.__exit__(None, None, None)
        if self._session is not None and self._session.ranks.first:
            self._log(self._session.watcher)

    def published(self, error: BaseException | None, status: int = 0) -> int:
        """Write the report and leave nothing else behind; errors of ours are shown, the exit status is the script's."""
        try:
            return self._publish(failed=error is not None or status != 0)
        except AmpcheckError as problem:
            output.complain(problem)
        except Exception as problem:  # noqa: BLE001  # whatever it is
            print(
                f"ampcheck: error: {type(problem).__name__}: {problem}; please report this", file=sys.stderr
            )
        finally:
            self._corner.clear()
        return 0

    def _publish(self, *, failed: bool) -> int:
        """Write the report; return the exit status for a script that went well."""
        if self._session is None or self._broken:
            why = self._broken or "the script never imported torch"
            print(f"ampcheck: no training was seen: {why}", file=sys.stderr)
            return NO_TRAINING
        session, ranks = self._session, self._session.ranks
        if not session.trained and ranks.size == 1 and self._forwards is not None:
            status = self._publish_forwards(self._forwards)
            if status is not None:
                return status
        others = self._children.reports()
        session.watcher.children -= len(others)
        report = session.report(self._program.shown, self._notes)
        if not ranks.first:
            return self._leave(report, ranks)
        whole, heard = ranks.gather(report)
        report = joined(whole, others)
        trained = session.trained or (report.loop is not None and bool(report.loop.steps))
        if failed and not trained and not self._options.output:
            print("ampcheck: no training was seen before that", file=sys.stderr)
            return NO_TRAINING
        # Standard output is the script's.
        with contextlib.redirect_stdout(sys.stderr):
            status = output.publish(report, self._options, quiet=True)
        if status == output.COULD_NOT_WRITE and self._options.fail_on == "never":
            status = 0  # it was told, and the exit status is the script's
        self._clear(heard)
        if trained and self._calls is not None:
            tried = publish_recipes(self._calls, self._program.shown, self._options, self._notes)
            status = max(status, tried)
        return status if trained else NO_TRAINING

    def _leave(self, report: Report, ranks: "Ranks") -> int:
        """Leave a rank's report in a file, and send it to the first rank, which takes the file away."""
        place = self._place()
        write(place, to_json(select(report, self._options.config, source)))
        if not ranks.send(report):
            words = f"rank 0 cannot be reached, the report of this rank is {str(place)!r}"
            print(f"ampcheck: {words}", file=sys.stderr)
            self._corner.keep()
        return 0

    def _clear(self, heard: Sequence[int]) -> None:
        """Take away what was kept while the script ran, of the ranks that were heard of as well."""
        written = {Path(output.path) for output in self._options.output}
        for path in map(self._kept, [0, *heard]):
            if path is not None and path not in written:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _publish_forwards(self, forwards: "Forwards") -> int | None:
        """Audit the models that a script without training has called, a report each; None where there are none."""
        left_out = self._session.left_out if self._session is not None else ""
        targets = forwards.targets(self._program.shown, left_out)
        status = publish_each(targets, self._options, self._notes)
        for kind in forwards.lost if status is None else ():
            print(f"ampcheck: {kind} was freed before the script ended: not audited", file=sys.stderr)
        return status
