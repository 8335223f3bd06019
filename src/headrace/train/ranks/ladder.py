"""Trains a script on 1, 2 and 4 ranks in turn, for a short while each, and says what more ranks bring.

How this works: each round trains every number of ranks once, so that what else the machine does meets them alike. A training
ends by itself after some steps: all ranks leave after the same one. Its run folder is kept below the folder of the command, as
`ranks-2-1` for the first round of two ranks; the answer is `scaling.json` beside them.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.base.documents import encode_document
from headrace.base.errors import HeadraceError, RunFolderError, SettingsError
from headrace.base.formatting import pluralize
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.scaling import ShortTraining, describe_rungs, find_doubts, read_short_training
from headrace.diagnose.training.scaling_predicted import predict_ranks, predict_rate, propose
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.runs.earlier_run import explain_unwritable
from headrace.runs.formats.scaling import FILE, MeasuredLink, Rung, ScalingDocument
from headrace.runs.reader import read_run
from headrace.runs.run_folder import RunFolder, headrace_version, replace_file
from headrace.train.program import armed_environment
from headrace.train.ranks.launch import Group, RanksFailed, run_group
from headrace.train.ranks.link_probe import measure_link

#: Ranks that are predicted beside those that were measured.
_PREDICTED = (2, 4, 8)
#: What another folder, space or rights help against; an OSError of another kind (no file left to open) is said as it is.
_UNWRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EIO, errno.ENOENT, errno.ENOTDIR,
}  # fmt: skip
#: A prediction that was off by more is worth a warning.
_FAR_OFF = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSettings:
    """What is asked for.

    Attributes:
        argv: Script and arguments, or `-m`, module and arguments.
        output: Folder to write.
        ranks: Numbers of ranks, 1 among them.
        rounds: Trainings of each number.
        steps: Of each training.
        threads: Of PyTorch's operators, in each rank.
        patience: Seconds until a training is taken to hang.
        force: Replace what an earlier command left in the folder.
    """

    argv: tuple[str, ...]
    output: Path
    ranks: tuple[int, ...] = (1, 2, 4)
    rounds: int = 3
    steps: int = 30
    threads: int = 1
    patience: float = 600.0
    force: bool = False

    @property
    def script(self) -> str:
        """Its name, or the module's."""
        return self.argv[1] if self.argv[0] == "-m" else self.argv[0]


class Ladder:
    """One command: what it has measured so far is there whatever ends it."""

    def __init__(self, settings: LadderSettings, say: Callable[[str], None]) -> None:
        """Measure nothing yet.

        Args:
            settings: What is asked for.
            say: Takes a line about what is going on.
        """
        self._settings, self._say = settings, say
        self._trainings: dict[int, list[ShortTraining]] = {ranks: [] for ranks in settings.ranks}
        self._folders: dict[int, list[Path]] = {ranks: [] for ranks in settings.ranks}
        self._failures: list[str] = []
        self._link: MeasuredLink | None = None
        self._is_interrupted = False

    def measure(self) -> ScalingDocument:
        """Train, and return what came of it; after Ctrl-C, or an error of the system, what was measured until then.

        Raises:
            SettingsError: If the script cannot be started.
            RunFolderError: If the folder holds something else.
        """
        _prepare(self._settings.output, force=self._settings.force)
        try:
            self._train_all()
        except KeyboardInterrupt:
            self._is_interrupted = True
        except OSError as error:  # a full disk: what was measured is still an answer
            self._failures.append(_explain(self._settings.output, error))
        document = self._describe()
        try:
            replace_file(self._settings.output / FILE, encode_document(document, indent=True) + b"\n")
        except OSError as error:
            why = _explain(self._settings.output, error)
            if why not in document.failures:
                document = msgspec.structs.replace(document, failures=(*document.failures, why))
        return document

    def _train_all(self) -> None:
        settings = self._settings
        for number in range(1, settings.rounds + 1):
            for ranks in settings.ranks:
                self._say(f"round {number} of {settings.rounds}: {pluralize(ranks, 'rank')}")
                try:
                    self._train(ranks, number)
                except (RanksFailed, CannotReplay, RunFolderError) as error:
                    self._failures.append(f"{ranks} rank(s), round {number}: {error}")
                    if number == 1:  # it would fail in the other rounds too
                        return
        self._say("what lies between two ranks")
        try:
            self._link = measure_link()
        except (RanksFailed, OSError) as error:  # it uses the folder for temporary files
            self._failures.append(f"the link between ranks was not measured: {error}")

    def _train(self, ranks: int, number: int) -> None:
        folder = self._settings.output / f"ranks-{ranks}-{number}"
        self._trainings[ranks].append(train_shortly(self._settings, ranks, folder))
        self._folders[ranks].append(folder)

    def _describe(self) -> ScalingDocument:
        settings = self._settings
        rungs = describe_rungs(self._trainings)
        document = ScalingDocument(
            headrace_version=headrace_version(),
            created_unix_seconds=time.time(),
            script=settings.script,
            folder=str(settings.output),
            num_cores=0.0,
            threads=settings.threads,
            steps=settings.steps,
            rungs=tuple(rungs),
            link=self._link,
            failures=tuple(self._failures),
            interrupted=self._is_interrupted,
        )
        if not rungs:
            return document
        doubts = tuple(find_doubts(rungs, read_run(self._middle_run(rungs[-1].ranks))))
        document = msgspec.structs.replace(document, warnings=doubts)
        try:
            replay = TrainingReplay(read_run(self._middle_run(1)))
        except (HeadraceError, CannotReplay) as error:
            return msgspec.structs.replace(document, warnings=(*doubts, f"nothing is predicted: {error}"))
        return _with_predictions(document, replay, self._replay_of_most(rungs[-1]))

    def _replay_of_most(self, rung: Rung) -> TrainingReplay | None:
        if rung.ranks == 1:
            return None
        try:
            return TrainingReplay(read_run(self._middle_run(rung.ranks)))
        except CannotReplay:
            return None

    def _middle_run(self, ranks: int) -> Path:
        """Return the folder of the training whose step was the middle one."""
        pairs = sorted(zip((one.step_seconds for one in self._trainings[ranks]), self._folders[ranks], strict=True))
        return pairs[len(pairs) // 2][1]


def train_shortly(settings: LadderSettings, ranks: int, path: Path) -> ShortTraining:
    """Train the script once, and return what that took.

    Args:
        settings: Script, steps, threads and patience.
        ranks: How many.
        path: Run folder to make.

    Raises:
        RanksFailed: If a rank fails or hangs.
        CannotReplay: If they did not train together.
        RunFolderError: If the folder cannot be written.
    """
    name = settings.script
    folder = RunFolder.create(path, pipeline=name, options=settings.argv[1:], unit="step")
    logs = folder.path / "logs"
    logs.mkdir()
    environment = {
        **armed_environment(folder.path, name),
        "HEADRACE_TRAIN_STEPS": str(settings.steps),
        "OMP_NUM_THREADS": str(settings.threads),
    }
    argv = (sys.executable, *settings.argv)
    has_ended = False
    try:
        run_group(Group(argv=argv, ranks=ranks, environment=environment, logs=logs, patience=settings.patience))
        has_ended = True
    except BaseException as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error).partition("\n")[0]
        _finish(folder, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", reason)
        raise
    finally:
        if has_ended:
            folder.finish("finished")
    return read_short_training(read_run(folder.path), ranks)


def _with_predictions(
    document: ScalingDocument, replay: TrainingReplay, most: TrainingReplay | None
) -> ScalingDocument:
    """Return the document with what the training of one rank and the link predict."""
    warnings = list(document.warnings)
    rungs, link = list(document.rungs), document.link
    predicted = []
    cores = replay.recorded.cores
    if link is not None:
        try:
            rungs = [
                msgspec.structs.replace(
                    rung, predicted=predict_rate(replay, rung.ranks, link) if rung.ranks > 1 else None
                )
                for rung in rungs
            ]
            numbers = sorted({*_PREDICTED, *(rung.ranks for rung in rungs if rung.ranks > 1)})
            predicted = [predict_ranks(replay, ranks, link) for ranks in numbers]
        except CannotReplay as error:
            warnings.append(f"more ranks are not predicted: {error}")
    warnings += [
        f"{rung.ranks} ranks were predicted at {rung.predicted.mid:.4g}/s from one rank, and {rung.samples_per_second:.4g}/s "
        "were measured: trust the figures of more ranks as little"
        for rung in rungs
        if rung.predicted is not None and abs(rung.predicted.mid / rung.samples_per_second - 1) > _FAR_OFF
    ]
    proposals = propose(most, rungs[-1], num_cores=cores, threads=document.threads) if most is not None else []
    return msgspec.structs.replace(
        document,
        num_cores=cores,
        gradient_bytes=round(sum(replay.recorded.exchange.gradients)),
        rungs=tuple(rungs),
        predicted=tuple(predicted),
        proposals=tuple(proposals),
        warnings=tuple(warnings),
    )


def _prepare(output: Path, *, force: bool) -> None:
    """Make the folder; what an earlier command left there goes with `force`."""
    old = sorted(output.glob("ranks-*-*")) if output.is_dir() else []
    if (old or (output / FILE).exists()) and not force:
        raise RunFolderError(
            f"{output} holds what an earlier `headrace train scale` measured; name another folder with -o, or add --force"
        )
    if output.exists() and not output.is_dir():
        raise SettingsError(f"-o {output} is a file, expected a folder")
    try:
        for folder in old:
            shutil.rmtree(folder)
        (output / FILE).unlink(missing_ok=True)
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"-o {output} cannot be written: {error.strerror}; name another folder") from None


def _explain(output: Path, error: OSError) -> str:
    return str(explain_unwritable(output, error) if error.errno in _UNWRITABLE else error)


def _finish(folder: RunFolder, status: str, reason: str) -> None:
    with contextlib.suppress(RunFolderError):  # no step was recorded: the error that is on its way says why
        folder.finish(status, ended_by=reason)  # type: ignore[arg-type]
