"""The phases of a training step, and the stretches between steps, by their names in a run folder.

How this works: a recorder knows at each moment which phase the training thread is in, and each event of the loop (a batch is
asked for, it has come, the model is called, ...) ends one phase and begins the next. So the phases of a step have no gap
between them and do not overlap, and what nobody hooked into has the name of its place: `loss` is everything between the end of
the forward pass and the start of the backward pass.

In a run folder each phase is a span: `unit` is a `Stretch`, `unit_id` its number, `stage` the phase, `batch_id` the number of
the micro-batch, `started` and `ended` on the clock of the host, `cpu` and `run_delay` of the training thread. One more span,
whose stage is `WHOLE`, stands for the stretch as a whole: `batch_size` is its samples (0: not known), `release_reason` its
`Kind`, `outcome` is `failed` where an exception ended it.
"""

from __future__ import annotations

from enum import StrEnum


class Stretch(StrEnum):
    """What a stretch of the training thread's time was."""

    STEP = "step"
    """From the request for the first batch of one optimizer step to the request for the first batch of the next."""
    VALIDATION = "validation"
    """Batches that went through the model without gradients."""
    BETWEEN = "between"
    """Neither: the turn of an epoch, a checkpoint, code before the first batch."""


class Phase(StrEnum):
    """Where the training thread is."""

    WAIT = "wait"
    """It asked the loader for a batch. Without loader workers, the work of loading is in here."""
    PREPARE = "prepare"
    """The batch has come; the model was not called yet: transfer to the device, `zero_grad`."""
    FORWARD = "forward"
    """In the call of the outermost module."""
    LOSS = "loss"
    """After the forward pass, before the backward pass."""
    BACKWARD = "backward"
    """In `backward()`, until the gradients of this process are complete."""
    EXCHANGE = "exchange"
    """Waiting for other processes, and exchanging with them: gradients at the end of `backward()`, buffers at the start of the
    forward pass."""
    BEFORE_UPDATE = "before_update"
    """After the backward pass, before the optimizer: clipping, scaling, logging."""
    OPTIMIZER = "optimizer"
    """In `optimizer.step()`."""
    AFTER = "after"
    """After the optimizer: logging, `.item()`, scheduler, moving averages."""
    EPOCH_START = "epoch_start"
    """In `iter(loader)`: loader workers start."""
    CHECKPOINT = "checkpoint"
    """In `torch.save`, or in what a framework saves with."""
    OUTSIDE = "outside"
    """In none of these: a stretch that is no step."""


class Kind(StrEnum):
    """What sets a step apart from the others; steps that are not plain are never averaged with those that are."""

    PLAIN = ""
    EPOCH_START = "epoch_start"
    """Its batch was the first of an epoch."""
    RECOMPILED = "recompiled"
    """`torch.compile` compiled something."""
    PROFILED = "profiled"
    """torch.profiler ran in it, or wrote its trace (see `headrace train --torch-profiler`), or allocations were traced."""
    CUT = "cut"
    """Recording ended in it, by another thread than the one that trained (the end of a process): its end was not seen, and what
    came after its last event is missing."""
    UNEVEN = "uneven"
    """It asked for more or fewer batches than it used: a resume that skips, a loop that fetches ahead."""


#: The span of a whole stretch.
WHOLE = "whole"
#: Beside the phases, among the lines of the user's code: where workers of the loader were seen at work.
WORKERS = "workers"

#: The unit of what was done for one batch in a loader, in a worker process or in the training thread's `WAIT`. `unit_id` is the
#: number of the batch among those that the process got, `parent_id` the step that used it (none: no step did, or it is not
#: known), `process` and `thread` (`worker 3`, `train`) where it was done, `batch_id` its number among those of that worker in
#: that epoch, `batch_size` its items (0: not known), `bytes_out` its bytes; `arrived` is when the loop asked for it, `put` when
#: it got it. `ITEMS`, `COLLATE` and `SEND` lie where they happened; the others are sums over its items, and begin with `ITEMS`.
BATCH = "batch"

#: The unit of what a device did; `unit_id` is the step, `thread` the device (`cuda:0`). Its phases, and a `WHOLE`, are what the
#: device took for what was launched in each, on the host's clock, as far as events told. In the run folder of a trace there is
#: `EXCHANGE` alone, one for each step, from when this rank was there to when all had exchanged: the host goes on meanwhile, so
#: its own `EXCHANGE` is none.
DEVICE = "device"


class LoaderWork(StrEnum):
    """Stages of spans whose unit is `BATCH`."""

    ITEMS = "items"
    """`dataset[i]` for all items of the batch: `cpu` and `run_delay` say what it cost, the rest was spent blocked. Tokenising
    in `collate_fn` is counted here too, and not in `COLLATE`."""
    COLLATE = "collate"
    """Items to one batch."""
    READ = "read"
    """Part of `ITEMS`: what these were blocked for outside of decoding, augmenting and tokenising: reading, sleeping, locks."""
    DECODE = "decode"
    """Part of `ITEMS`: Pillow, OpenCV or simplejpeg decoded."""
    OPEN = "open"
    """Part of `ITEMS`: what was computed for an item before its transform, outside of decoding and tokenising: opening files,
    converting. With `READ` and `DECODE` it is what a cache of items keeps. Not known without a transform."""
    AUGMENT = "augment"
    """Part of `ITEMS`: the data set's own transform, without what was decoded or tokenised in it."""
    TOKENISE = "tokenise"
    """Part of `ITEMS`: a tokeniser was called, for an item or in `collate_fn`."""
    SEND = "send"
    """From the end of collating until the loop got the batch: sent, or ready and waiting. `cpu` is that of the worker's other
    threads since its batch before: they send that one."""
