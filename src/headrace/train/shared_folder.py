"""One run folder for all ranks of a process group: the first one makes it, and the others hear of it."""

from __future__ import annotations

from pathlib import Path

import torch

from headrace.base.errors import RunFolderError
from headrace.runs.run_folder import RunFolder, Status


class SharedFolder:
    """A run folder that ranks write into together; only the first rank writes `run.json`.

    Attributes:
        path: The folder.
    """

    def __init__(self, output: str | Path, *, pipeline: str, force: bool = False) -> None:
        """Make the folder, or wait until the first rank has made it.

        Args:
            output: The folder, on a disk that all ranks reach under this name.
            pipeline: Name of what runs.
            force: Replace what an earlier run left there.

        Raises:
            RunFolderError: On every rank, if the first one cannot take the folder.
        """
        self.path = Path(output)
        self._folder: RunFolder | None = None
        rank, is_group = _find_group()
        failure: RunFolderError | None = None
        if rank == 0:
            try:
                self._folder = RunFolder.create(output, pipeline=pipeline, unit="step", force=force, in_code=True)
            except RunFolderError as error:
                failure = error
        if is_group:
            said = ["" if failure is None else str(failure)]
            torch.distributed.broadcast_object_list(said, src=0)
            if failure is None and said[0]:
                raise RunFolderError(f"rank 0 could not take the run folder: {said[0]}")
        if failure is not None:
            raise failure

    def finish(self, status: Status) -> None:
        """Write how the training ended, on the first rank; others may still be writing their last steps."""
        if self._folder is not None:
            self._folder.finish(status)


def _find_group() -> tuple[int, bool]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size() > 1
    return 0, False
