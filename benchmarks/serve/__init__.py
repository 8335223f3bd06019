"""headrace behind HTTP beside other servers: `python -m benchmarks.serve`.

    arrivals.py      when an open loop sends
    figures.py       percentiles from the intended send, goodput, ratios
    load.py          the load client, a process of its own
    workloads.py     what is asked for: an emulated device, a real model
    peers/           the other servers, one small program each
    environments.py  the virtual environments that they run in
    contestants.py   starts and stops servers, ours and theirs
    usage.py         what a server used, from the kernel
    tuning.py        a peer's best settings
    speed.py         rounds in turn: closed loops, open loop
    overload.py      more than there is room for
    strangers.py     clients that vanish, drip and idle

Nothing in `peers` and `load.py` imports headrace.
"""
