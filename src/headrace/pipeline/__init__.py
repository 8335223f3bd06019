"""Joins sources, stages, engines and delivery into a pipeline that runs.

Every file is here, in the order to read them. The first two parts follow one image from the source back to its ack.

Setting up a run:

    definition.py       Pipeline: what is done; loading.py: the one that a user names
    stage_defaults.py   what stages ask for where the Plan says nothing, and which share a worker; fused_waits.py: wrongly
    execute.py          run(): Plan and Pipeline in, Result and run folder out
    run_context.py      what all parts of a run share: Plan, clock, observers, counters
    thread_budget.py    how many cores there are, and which stage gets how many threads
    runtime.py          one run: makes the parts below, connects them, waits for the end, closes them
    building.py         the stations of a run, and the route of each task through them
    workers.py          starts and replaces the workers' threads
    opening.py          opens the stages and models of one worker; model_slots.py: models that can be replaced
    caching.py          what goes around the calls of stages whose results the Plan keeps
    warm_up.py          calls each batch size once and measures it; warmth.py: which worker does it

The way of one item:

    item.py             what travels: a job, or a child that a fan-out made
    receivers.py        the threads that take jobs from the source and put them into the first queue
    admission.py        how many jobs may be inside; refill.py: when a receiver is called for more;
                        receiver_totals.py, run_limit.py: what was received, `--limit`
    bounded_queue.py    the queue before a station, with backpressure; sizes.py: bytes of a value
    laned_queue.py      the same with a lane for each server; bulkheads.py: which worker serves which lane
    two_lines.py        what waits where some are urgent
    station.py          one queue and its workers: take, run, hand on; connections.py: what it asks of the run
    worker.py           one of its workers; taking.py: what it takes at a time;
                        resources.py: what models share, such as a device
    passing.py          what happens to items before the stages and behind them
    carriage.py         one thread that carries the calls of all stations whose workers only wait; carrying.py: those of one;
                        carried_costs.py: what they cost
    group.py            runs the items through the stages that share a worker; users_code.py: what these may raise
    batch_buffer.py     the memory of a batch
    remote.py           a group in a child process; shared_values.py: how values get there; correspondence.py: and notes of
                        instruments back; child_line.py: messages to the child, and its end
    finisher.py         hands on a batch while the device runs the next
    router.py           the next step: another station, a retry, fan-out or join, or the end; ordering.py: ordered output
    settling.py         the end of a job, exactly once; unflushed.py: results that are not durable yet
    failing.py          which outcome an error has; undelivered.py: the outcome of a result that nobody takes now

Beside the items:

    bookkeeping.py      the thread that makes spans; work_notes.py: what it makes them of; span_limit.py: how many are kept
    punctuality.py      whether acks and heartbeats are in time
    prefetch.py         how many jobs may be in flight, by the measured throughput
    task_shares.py      keeps a slow task from holding up the others
    stall_watch.py      workers that hang; guard.py: threads of the run that break; end_signals.py, bell.py: SIGTERM and Ctrl-C
    rest.py             how long the threads beside the items pause; garbage.py: when the garbage collector runs
    watching.py         what may live beside a run; run_state.py: what it may ask; summary.py: counts, rates and percentiles,
                        stage_totals.py: of one stage; told.py: who is told them in bulk
    failure_log.py      failures on the log; reasons.py: failures counted; failure_limit.py: `--max-failed`

Other ways to run:

    resuming.py         `--resume`: checkpoint.py keeps what is done, run_identity.py says whether it is the same run
    gathering.py        `--shard`, afterwards: whether all portions are done, and their results together
    following.py        `--follow`: another model while the pipeline runs
    shadow.py           `--shadow`: a candidate beside the model
    canary.py           `--canary`: another Plan's model for a share of the jobs; arms.py: of which ones, and how they end;
                        canary_calls.py: whose model answers a batch
    levers.py           what an experiment changes for a while, and how all of it is undone; what caps a run
    governor.py         keeps a run within its Plan's `[budget]`: sensors.py: what it uses; rungs.py: the ladder that it goes
                        down, rung_models.py: cheaper models on it; memory_forecast.py: whether it fits at all
    dry_run.py          `--dry-run`: everything but delivery and acks
    supervisor.py       `--supervise`: several processes, started again when they die; memory_killer.py: why they died;
                        renewal.py: one after the other
"""
