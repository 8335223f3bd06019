"""Joins sources, stages, engines and delivery into a pipeline that runs.

Read in this order:

    definition.py      Pipeline: what is done
    execute.py         run(): Plan and Pipeline in, Result and run folder out; watching.py: what may live beside a run
    runtime.py         one run: makes the parts below, connects them, sees it from the first job to the last
    building.py        the stations of a run, from Pipeline and Plan; workers.py: their threads
    receivers.py       takes jobs from the source; admission.py: how many may be inside
    router.py          the way of an item: next station, another try, fan-out and join
    settling.py        the end of a job, once, whatever ended it; failing.py: how an error ends it
    station.py         one queue and its workers
    group.py           what a worker does with what it took
    finisher.py        hands on a batch's results while the device runs the next; work_notes.py: spans of what was done
    remote.py          the same in a child process (shared_values.py: how values get there)
    bounded_queue.py   backpressure; batch_buffer.py: the memory of a batch
    bookkeeping.py     spans for those who watch; punctuality.py: whether acks and heartbeats come in time
    unflushed.py          results that are not durable yet; ordering.py: ordered output
    thread_budget.py   cores and threads; garbage.py: the garbage collector; opening.py: stages and models of one worker
    summary.py         counts, rates and percentiles while it runs
"""
