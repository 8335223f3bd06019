"""Whether a run fits into the memory of its Plan's `[budget]`, said before the memory is asked for.

How this works: three looks. Before a model is opened, it needs at least its file's size beside what the process has. Once all
are opened, that is measured. And warm-up calls growing batches: the peak of each is measured, and the growth from one item to
the next says what the next size will need, because the values between layers grow with the batch. What is predicted not to fit
is never made: the batch stays at the last size that fits. Where not even one item fits, the run is refused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headrace.base.errors import DoesNotFit, EngineError
from headrace.base.units import format_size
from headrace.engines.model_files import model_files

logger = logging.getLogger("headrace.run")

_SELF = Path("/proc/self")


class TooLarge(Exception):
    """A batch of this size is predicted not to fit; ends the warm-up."""


class PeakMeter:
    """The largest resident memory since the last look, of this process."""

    def read(self) -> int:
        """Return it, and begin anew; what is resident now where the kernel does not begin anew."""
        status = _read_status()
        peak = max(status.get("VmHWM", 0), status.get("VmRSS", 0)) + status.get("VmSwap", 0)
        try:
            (_SELF / "clear_refs").write_text("5")
        except OSError:
            return (status.get("VmRSS", 0) + status.get("VmSwap", 0)) * 1024
        return peak * 1024


class MemoryForecast:
    """Looks whether a run fits, in this process.

    Args:
        limit: Bytes that the run may use.
        used_bytes: Returns what it uses now.
        read_peak: Returns the peak of this process since the last call.

    Attributes:
        warming: Held by the one stage that warms up: the peaks of two at a time could not be told apart.
        predicted: {stage: {batch size: bytes that were predicted before it was made}}.
        peaks: {stage: {batch size: bytes that were measured}}.
    """

    def __init__(self, limit: int, used_bytes: Callable[[], int], read_peak: Callable[[], int] | None = None) -> None:
        self.warming = threading.Lock()
        self.predicted: dict[str, dict[int, int]] = {}
        self.peaks: dict[str, dict[int, int]] = {}
        self._limit = limit
        self._used_bytes = used_bytes
        self._read_peak = read_peak or PeakMeter().read
        self._opened = 0

    def check_files(self, artifacts: Iterable[str]) -> None:
        """Look before the models are opened.

        Raises:
            DoesNotFit: If the weights alone are too much.
        """
        used, weights = self._used_bytes(), 0
        for artifact in set(artifacts):
            with contextlib.suppress(EngineError, OSError):  # it is opened later, and says so itself
                weights += model_files(Path(artifact)).num_bytes
        if used + weights > self._limit:
            raise DoesNotFit(
                f"the run does not fit: it uses {format_size(used)} before any model is opened, the files of its models have "
                f"{format_size(weights)}, and [budget] memory is {format_size(self._limit)}; {_ADVICE}"
            )

    def check_opened(self) -> None:
        """Look once all stages are opened, before the first job.

        Raises:
            DoesNotFit: If there is no room for any.
        """
        self._opened = self._used_bytes()
        self._read_peak()
        if self._opened > self._limit:
            raise DoesNotFit(
                f"the run does not fit: it uses {format_size(self._opened)} before its first job, and [budget] memory is "
                f"{format_size(self._limit)}; {_ADVICE}"
            )

    def before_batch(self, stage: str, size: int) -> None:
        """Look before the warm-up of a stage makes a batch of this size.

        Raises:
            TooLarge: If that is predicted not to fit, or the one before it did not; ends the warm-up.
        """
        predicted, peaks = self.predicted.setdefault(stage, {}), self.peaks.setdefault(stage, {})
        if size in predicted and size not in peaks:
            return  # the second call of a size
        self._note_peak(stage)
        if size in peaks:
            return
        expected = _extend(self._opened, peaks, size) if peaks else self._opened
        predicted[size] = expected
        if max([expected, *peaks.values()]) > self._limit:
            raise TooLarge

    def end_warm_up(self, stage: str, max_batch: int) -> int | None:
        """Return the largest batch that a stage may make; None: the Plan's.

        Args:
            stage: Whose warm-up is over.
            max_batch: The Plan's.

        Raises:
            DoesNotFit: If the smallest is too much.
        """
        predicted, peaks = self.predicted.get(stage, {}), self.peaks.get(stage, {})
        if not predicted:
            return None
        self._note_peak(stage)
        fitting = [size for size, peak in peaks.items() if peak <= self._limit]
        if peaks and not fitting:
            size, peak = min(peaks.items())
            raise DoesNotFit(
                f"the run does not fit: with a batch of {size} in {stage} it uses {format_size(peak)}, and [budget] memory is "
                f"{format_size(self._limit)}; {_ADVICE}"
            )
        too_large = {size: peaks.get(size, predicted[size]) for size in predicted if size not in fitting}
        too_large = {size: num_bytes for size, num_bytes in too_large.items() if num_bytes > self._limit}
        if not fitting or not too_large or max(fitting) >= max_batch:
            return None
        size, num_bytes = min(too_large.items())
        logger.warning(
            "%s: batches have at most %d items, because %d would need %s, and [budget] memory is %s",
            stage, max(fitting), size, format_size(num_bytes), format_size(self._limit),
        )  # fmt: skip
        return max(fitting)

    def _note_peak(self, stage: str) -> None:
        """Note the peak of the last size that was called."""
        predicted, peaks, peak = self.predicted[stage], self.peaks[stage], self._read_peak()
        last = max(predicted, default=None)
        if last is not None and last not in peaks and predicted[last] <= self._limit:
            peaks[last] = peak


_ADVICE = "take a smaller model, smaller images or fewer workers, or give it more"


def _extend(opened: int, peaks: Mapping[int, int], size: int) -> int:
    """Return the peak of a larger batch, by the growth from item to item between the last two sizes."""
    (last_size, last), *rest = sorted(peaks.items(), reverse=True)
    before_size, before = rest[0] if rest else (0, opened)
    return last + round((size - last_size) * max(0, last - before) / (last_size - before_size))


def _read_status() -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError):
        for line in (_SELF / "status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                found[name] = int(rest.split()[0])
    return found
