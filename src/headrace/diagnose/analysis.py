"""One recorded run, analysed once: each part is made when it is first asked for, and kept for whoever asks next.

analysis = Analysis(read_run("runs/first"))
analysis.profile                    where the time went, and whether that can be believed
analysis.replay.ratio(change)       what a change would make of it
diagnosis_document(analysis)        what limits it; see `diagnosis`
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from headrace.base.errors import RunFolderError
from headrace.diagnose.document import document_of
from headrace.diagnose.evidence import Evidence, collect
from headrace.diagnose.replay import Replay
from headrace.runs.formats.profile import ProfileDocument
from headrace.runs.reader import Run


class Analysis:
    """What is worked out from one run folder. Not thread-safe.

    Attributes:
        run: As `headrace.runs.reader.read_run` returns it.
        sibling_cores: Cores that other processes of the same run used meanwhile; None: it is not known that there are any.
    """

    def __init__(self, run: Run) -> None:
        """Take a run of a pipeline.

        Raises:
            RunFolderError: If it is that of a training, which other parts analyse.
        """
        if run.info.unit == "step":
            raise RunFolderError(
                f"{run.path} is the run of a training, and this reads runs of pipelines; type headrace diagnose, "
                f"headrace report or headrace whatif with {run.path}"
            )
        self.run = run
        self.sibling_cores: float | None = None

    @cached_property
    def evidence(self) -> Evidence:
        """All that the folder holds."""
        return collect(self.run)

    @cached_property
    def profile(self) -> ProfileDocument:
        """Where the time went; see `profile_document`."""
        document = document_of(self.evidence)
        if self.sibling_cores is None:
            return document
        environment = msgspec.structs.replace(document.environment, sibling_cpu_cores=self.sibling_cores)
        return msgspec.structs.replace(document, environment=environment)

    @cached_property
    def replay(self) -> Replay:
        """The run, ready to be simulated under another Plan.

        Raises:
            CannotReplay: If it does not hold what is needed; the message says what, and the next command.
        """
        return Replay.of(self.evidence, self.profile)
