"""What profiling costs, measured during the run itself: blocks with it on and off, in the order A B B A.

How this works: a group of four blocks (on, off, off, on) makes two pairs, each within a second or so, so that a drift of the
machine falls on both sides alike. While it is off, workers read neither CPU time nor run-queue delay, and the spans have none;
after each group comes a rest with profiling on, so that it is off for a quarter of the time. A pipeline that does too little
in a block for a comparison has longer blocks. What writing spans, the profiler's thread and its sampler process cost is not in
here: they have CPU clocks of their own.

This is not `compare.turns`: nothing is run here, one run goes on and only its switch is turned, by readings that come when they
come. Nobody stops it either when the answer is there, because the run ends when its work is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.runs.formats.profiling import OverheadBlock

BLOCK_SECONDS = 0.5
#: Passages that a block should hold at least, so that the ones cut by its edges do not matter.
BLOCK_PASSAGES = 200
LONGEST_BLOCK_SECONDS = 5.0
MOST_PAIRS = 40
_PATTERN = (True, False, False, True)
_REST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the run stands at one moment."""

    seconds: float
    """On any clock."""
    items: int
    """Jobs settled so far."""
    cpu_seconds: float
    passages: dict[str, int]
    """{stage: items that went through it so far}."""


@dataclass(slots=True)
class BlockSchedule:
    """Says when profiling is on; call `tell` as often as convenient.

    Attributes:
        blocks: What was measured, in pairs of one block on and one off.
    """

    blocks: list[OverheadBlock] = field(default_factory=list)
    _position: int = -_REST_BLOCKS
    _began: Reading | None = None
    _block_seconds: float = BLOCK_SECONDS

    @property
    def is_on(self) -> bool:
        """Whether profiling is to be on now."""
        return self._position < 0 or _PATTERN[self._position]

    def tell(self, now: Reading) -> bool:
        """Take a reading and return whether profiling is to be on from now."""
        if self._began is None:
            self._began = now
        if now.seconds - self._began.seconds < self._block_seconds or len(self.blocks) >= 2 * MOST_PAIRS:
            return self.is_on
        if self._position >= 0:
            self.blocks.append(_block(self.is_on, self._began, now))
        else:
            self._adapt(now)
        self._began = now
        self._position += 1
        if self._position == len(_PATTERN):
            self._position = -_REST_BLOCKS
        return self.is_on

    def pairs(self) -> list[OverheadBlock]:
        """Return the blocks without a last one that has no partner."""
        return self.blocks[: len(self.blocks) // 2 * 2]

    def _adapt(self, now: Reading) -> None:
        if self._began is None:
            return
        passages = sum(now.passages.values()) - sum(self._began.passages.values())
        rate = passages / (now.seconds - self._began.seconds)
        # Nothing yet may only mean that the first items are still on their way.
        wanted = BLOCK_PASSAGES / rate if rate > 0 else 2 * self._block_seconds
        self._block_seconds = min(LONGEST_BLOCK_SECONDS, max(BLOCK_SECONDS, wanted))


def _block(is_on: bool, began: Reading, ended: Reading) -> OverheadBlock:
    return OverheadBlock(
        on=is_on,
        seconds=ended.seconds - began.seconds,
        items=ended.items - began.items,
        cpu_seconds=ended.cpu_seconds - began.cpu_seconds,
        passages={stage: count - began.passages.get(stage, 0) for stage, count in ended.passages.items()},
    )
