"""What the ranks of a run show together: the part of a training's document that needs more than one of them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.diagnose.training.ranks import join_exchanges, read_exchanges
from headrace.diagnose.training.same_data import find_same_data
from headrace.diagnose.training.steps import RankSteps
from headrace.diagnose.training.stragglers import judge_ranks
from headrace.runs.formats.training import TrainingProcess
from headrace.runs.formats.training_ranks import RanksDocument
from headrace.runs.reader import Run


def describe_together(run: Run, ranks: Sequence[RankSteps], about: Sequence[TrainingProcess]) -> RanksDocument:
    """Return who waits for whom, what the exchange takes, and data that came twice.

    Args:
        run: The folder.
        ranks: What it holds.
        about: What the processes said of themselves; those that did are enough.
    """
    same_data = tuple(find_same_data(about))
    if len({one.rank for one in ranks}) < 2:
        return RanksDocument(judged=None, same_data=same_data)
    by_rank = {one.rank: one for one in ranks}
    if len(by_rank) < len(ranks):
        why = "a rank has steps of several processes: it was started again"
        return RanksDocument(judged=None, why_not=why, same_data=same_data)
    meetings = join_exchanges({rank: one for rank, one in read_exchanges(run).items() if rank in by_rank})
    if meetings is None:
        why = next((one.not_measured["exchange"] for one in about if "exchange" in one.not_measured), "")
        why = (
            why
            or "no exchange of gradients was seen that ranks have in common: is the model in DistributedDataParallel?"
        )
        return RanksDocument(judged=None, why_not=why, same_data=same_data)
    judged = judge_ranks([by_rank[rank] for rank in meetings.ranks], meetings, is_traced=bool(run.info.window))
    why = "" if judged is not None else "ranks have no plain step in common"
    return RanksDocument(judged=judged, why_not=why, same_data=same_data)
