"""The sampler: a process that samples what the machine, the run's processes and its threads do.

How this works: the profiled process starts the sampler (`control.Sampler`), tells it over a pipe which worker threads there
are, and asks at the end for its report. The sampler (`python -m headrace.profiler.sampler`) wakes up some 100 times a second
to look at the worker threads' states and twice a second to read resources, and appends what it found to files of the run
folder (`runs.resource_files`). It ends when it is told to, when its pipe closes, or when the profiled process is gone. Should
it die, the run goes on, and the report says so.

Why a process of its own: a sampler thread in the profiled process needs the GIL to look, so that it looks when the GIL
is free. On threads that waited for the GIL half of their time such a sampler read 17 to 30 %.

Read in this order:

1. `messages`       what the two processes tell each other
2. `control`        the side of the profiled process
3. `gil`            where in memory the GIL is
4. `syscalls`       what a thread that is blocked in a system call waits for
5. `thread_states`  the states of the worker threads
6. `rates`, `machine`, `processes`, `gpu`    resources
7. `process`        the sampler's loop
"""
