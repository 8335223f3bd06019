"""What is planted, and what the recorder must name: the change, and the stage where it shows.

`FIRST` and `COMPOUND` were written before their first run, which named 18 of 24. Rules, and some plants, were then changed
until the same ones came to 23: what they score says how well the rules know them. `SECOND` and `SECOND_COMPOUND` were written
with other mechanisms, and scored before any rule was touched for them; the dated results say what came of it. Doses are drawn
anew by each seed. `THIRD` and `THIRD_COMPOUND` were written in the same way after the rules had been changed for the second.
Of two changes at once both must be among the first three.
"""

from __future__ import annotations

from benchmarks.watch.incidents.planted import NOWHERE, Dose, Planted
from headrace.runs.formats.incident import ChangeKind as K

_SLOW = Dose(0.2, 0.5)

FIRST = (
    Planted("arrivals x3", ((K.ARRIVALS, None),), {"rate": Dose(2.5, 4.0)}),
    Planted("arrivals x6", ((K.ARRIVALS, None),), {"rate": Dose(5.0, 8.0)}),
    Planted("images 6 x as large", ((K.INPUT_SIZE, None),), {"images": "large"}),
    Planted("images 12 x as large", ((K.INPUT_SIZE, None),), {"images": "huge"}),
    Planted("slow download host", ((K.DOWNLOAD, "fetch"),), {"host": {"latency_seconds": _SLOW}}),
    Planted("narrow link to the host", ((K.DOWNLOAD, "fetch"),), {"host": {"bytes_per_second": Dose(6e5, 1e6)}}),
    Planted("slow receiver", ((K.RECEIVER, "deliver"),), {"receiver": {"callback_seconds": _SLOW}}),
    Planted("receiver answers 503", ((K.RECEIVER, "deliver"),), {"receiver": {"callback_failures": Dose(0.3, 0.7)}}),
    Planted("one camera sends garbage", ((K.INPUT_FAILURES, "decode"),), {"of_camera": "garbage"}),
    Planted("every fifth image is cut off", ((K.INPUT_FAILURES, "decode"),), {"of_camera": "cut"}),
    Planted("three neighbours on every core", ((K.NEIGHBOUR, None),), {"neighbours": 6}),
    Planted("twelve neighbours", ((K.NEIGHBOUR, None),), {"neighbours": 12}),
    Planted("CPU quota", ((K.QUOTA, None),), {"quota": Dose(0.12, 0.25)}),
    Planted("one core fewer, and a busy one left", ((K.CORES, None),), {"cores": 1}),
    Planted("another model", ((K.MODEL, "process"),), {"model": Dose(4.0, 6.0)}),
    Planted(
        "device is slower",
        ((K.DEVICE, "process"),),
        {"around": (("process", "sleep", Dose(0.04, 0.1)),)},
        frozenset({K.CODE}),
    ),
    Planted("decoding burns more", ((K.CODE, "decode"),), {"around": (("decode", "burn", Dose(0.018, 0.035)),)}),
    Planted("preprocess loops in Python", ((K.CODE, "preprocess"),), {"around": (("preprocess", "spin", Dose(0.018, 0.035)),)}),
    Planted("slow disk", ((K.DISK, "preprocess"),), {"around": (("preprocess", "disk", Dose(6.0, 12.0)),)}),
    Planted(
        "lock contention",
        ((K.LOCK, "preprocess"),),
        {"around": (("preprocess", "lock"),), "holder": ("sleep", Dose(0.03, 0.06), 0.001)},
    ),
    Planted(
        "garbage collection of a large heap",
        ((K.GC, None),),
        {"around": (("preprocess", "collect"),), "heap": Dose(3e5, 6e5)},
    ),
    Planted("memory leak", ((K.MEMORY, None),), {"around": (("preprocess", "leak", Dose(1e6, 2e6)),)}),
    Planted("worker hangs", ((K.WORKERS, "lookup"),), {"hang": ("lookup", 3)}),
    Planted("a service that a stage asks is slow", ((K.REMOTE, "lookup"),), {"lookup": {"latency_seconds": _SLOW}}),
)  # fmt: skip

COMPOUND = (
    Planted(
        "larger images and a slow receiver",
        ((K.INPUT_SIZE, None), (K.RECEIVER, "deliver")),
        {"images": "large", "receiver": {"callback_seconds": _SLOW}},
    ),
    Planted(
        "arrivals x2 and neighbours",
        ((K.ARRIVALS, None), (K.NEIGHBOUR, None)),
        {"rate": Dose(1.8, 2.5), "neighbours": 8},
    ),
    Planted(
        "slow host and another model",
        ((K.DOWNLOAD, "fetch"), (K.MODEL, "process")),
        {"host": {"latency_seconds": _SLOW}, "model": Dose(4.0, 6.0)},
    ),
    Planted(
        "quota and larger images",
        ((K.QUOTA, None), (K.INPUT_SIZE, None)),
        {"quota": Dose(0.4, 0.6), "images": "large"},
    ),
    Planted(
        "garbage and a slow lookup",
        ((K.INPUT_FAILURES, "decode"), (K.REMOTE, "lookup")),
        {"of_camera": "garbage", "lookup": {"latency_seconds": _SLOW}},
    ),
    Planted(
        "leak and slow disk",
        ((K.MEMORY, None), (K.DISK, "preprocess")),
        {"around": (("preprocess", "disk", Dose(6.0, 12.0)), ("preprocess", "leak", Dose(1e6, 2e6)))},
    ),
)

SECOND = (
    Planted(
        "another program fills the disk's queue",
        ((K.DISK, "preprocess"),),
        {"always": (("preprocess", "note"),), "beside": ("sync_files", 4)},
    ),
    Planted(
        "slow name server",
        ((K.REMOTE, "lookup"),),
        {"always": (("lookup", "name"),), "names": _SLOW},
    ),
    Planted(
        "a thread computes while it holds a lock",
        ((K.LOCK, "lookup"),),
        {"always": (("lookup", "lock"),), "holder": ("burn", Dose(0.1, 0.25), 0.05)},
    ),
    Planted(
        "regular expression explodes for one item in five",
        ((K.CODE, "preprocess"),),
        {"around": (("preprocess", "match", Dose(20.5, 22.5)),)},
    ),
    Planted(
        "log handler waits for its reader",
        ((K.REMOTE, "preprocess"),),
        {"always": (("preprocess", "log"),), "reader": Dose(0.06, 0.12)},
        frozenset({K.LOCK}),
    ),
    Planted(
        "a timer collects garbage",
        ((K.GC, None),),
        {"heap": Dose(6e5, 1.2e6), "thread": ("collect", 0.0, Dose(0.05, 0.15))},
    ),
    Planted(
        "a neighbour's batches grow",
        ((K.NEIGHBOUR, None),),
        {"beside": ("compute_in_bursts", 8, Dose(0.4, 1.0), Dose(0.1, 0.2))},
    ),
    Planted("programs fill the memory bus", ((K.NEIGHBOUR, None),), {"beside": ("copy_memory", 6)}),
    Planted("one client sends bodies 7 x as large", ((K.INPUT_SIZE, None),), {"of_camera": "body"}),
    Planted(
        "receiver answers 500 to a third",
        ((K.RECEIVER, "deliver"),),
        {"receiver": {"callback_failures": Dose(0.25, 0.4), "failure_status": 500}},
    ),
    Planted("the queue gives each job several times", ((K.ARRIVALS, None),), {"copies": Dose(3, 6, 1)}),
    Planted("as many bytes, 20 x the pixels", ((K.INPUT_SIZE, None),), {"images": "flat"}),
    Planted(
        "host of one camera is slow",
        ((K.DOWNLOAD, "fetch"),),
        {"host": {"latency_seconds": Dose(0.6, 1.2)}, "only": True},
    ),
    Planted(
        "files of one camera are gone",
        ((K.DOWNLOAD, "fetch"),),
        {"of_camera": "gone"},
        frozenset({K.INPUT_FAILURES}),
    ),
    Planted(
        "preprocess pauses before it tries again",
        ((K.CODE, "preprocess"),),
        {"around": (("preprocess", "sleep", Dose(0.06, 0.15)),)},
    ),
    Planted("a thread beside the stages spins in Python", ((K.GIL, None),), {"thread": ("spin", 0.05, 0.0)}),
    Planted(
        "threads beside the stages compute in C",
        ((K.CODE, NOWHERE),),
        {"thread": ("burn", 0.05, 0.0), "threads": 4},
    ),
    Planted("one camera sends empty files", ((K.INPUT_FAILURES, None),), {"of_camera": "empty"}),
)

SECOND_COMPOUND = (
    Planted(
        "receiver answers 500 beside a neighbour's batches",
        ((K.RECEIVER, "deliver"), (K.NEIGHBOUR, None)),
        {
            "receiver": {"callback_failures": Dose(0.25, 0.4), "failure_status": 500},
            "beside": ("compute_in_bursts", 8, Dose(0.4, 1.0), Dose(0.1, 0.2)),
        },
    ),
    Planted(
        "large bodies and a slow name server",
        ((K.INPUT_SIZE, None), (K.REMOTE, "lookup")),
        {"of_camera": "body", "always": (("lookup", "name"),), "names": _SLOW},
    ),
    Planted(
        "jobs come several times, from a slow host",
        ((K.ARRIVALS, None), (K.DOWNLOAD, "fetch")),
        {"copies": Dose(3, 5, 1), "host": {"latency_seconds": _SLOW}},
    ),
)

_BURSTS = Dose(30, 60, 2)
_POLLED = Dose(0.15, 0.4)

THIRD = (
    Planted("as many jobs, but in bursts", ((K.ARRIVALS, None),), {"at_once": _BURSTS}),
    Planted(
        "one download in ten takes seconds",
        ((K.DOWNLOAD, "fetch"),),
        {"host": {"latency_seconds": 0.01, "slow_share": 0.1, "slow_seconds": Dose(1.0, 2.0)}},
    ),
    Planted(
        "each download needs a new connection",
        ((K.DOWNLOAD, "fetch"),),
        {"host": {"latency_seconds": 0.01, "keep_alive": False, "setup_seconds": Dose(0.1, 0.25)}},
    ),
    Planted(
        "host answers fewer requests than there are",
        ((K.DOWNLOAD, "fetch"),),
        {"host": {"latency_seconds": 0.01, "requests_per_second": Dose(12.0, 17.0)}},
    ),
    Planted(
        "host of one camera never answers",
        ((K.DOWNLOAD, "fetch"),),
        {"host": {"latency_seconds": 3600.0}, "only": True},
        frozenset({K.WORKERS}),
    ),
    Planted("receiver refuses connections", ((K.RECEIVER, "deliver"),), {"receiver": {}, "refuses": "receiver"}),
    Planted("a service that a stage asks refuses connections", ((K.REMOTE, "lookup"),), {"lookup": {}, "refuses": "lookup"}),
    Planted(
        "a stage asks again and again until a service is done",
        ((K.REMOTE, "lookup"),),
        {"always": (("lookup", "poll"),), "service": _POLLED},
        frozenset({K.CODE}),
    ),
    Planted(
        "another program locks a file",
        ((K.LOCK, "preprocess"),),
        {"always": (("preprocess", "lock_file"),), "beside": ("lock_file", Dose(0.15, 0.3), 0.05)},
    ),
    Planted(
        "files are read that are no longer in memory",
        ((K.DISK, "preprocess"),),
        {"around": (("preprocess", "read", Dose(24.0, 48.0)),)},
    ),
    Planted(
        "a stage starts a program for each item",
        ((K.CODE, "preprocess"),),
        {"around": (("preprocess", "run_program", 1.0),)},
        frozenset({K.REMOTE}),
    ),
    Planted(
        "a stage starts threads for each item",
        ((K.CODE, "preprocess"),),
        {"around": (("preprocess", "start_threads", Dose(150, 400)),)},
    ),
    Planted(
        "a stage touches fresh memory for each item",
        ((K.CODE, "preprocess"),),
        {"around": (("preprocess", "touch", Dose(5e7, 1e8)),)},
    ),
    Planted(
        "tracing of memory was left on",
        ((K.CODE, "preprocess"),),
        {"always": (("preprocess", "build", 4e3),), "tracing": 25},
    ),
    Planted("programs start programs", ((K.NEIGHBOUR, None),), {"beside": ("start_programs", 8)}),
    Planted(
        "a backup compresses files",
        ((K.NEIGHBOUR, None),),
        {"beside": ("compress_files", 8)},
        frozenset({K.DISK}),
    ),
    Planted(
        "device stutters",
        ((K.DEVICE, "process"),),
        {"around": (("process", "stutter", Dose(0.15, 0.4)),)},
        frozenset({K.CODE}),
    ),
    Planted("images come as PNG", ((K.INPUT_SIZE, None),), {"images": "png"}),
    Planted("a thread beside the stages sorts without a break", ((K.GIL, None),), {"thread": ("sort", 3e5, 0.1)}),
)  # fmt: skip

THIRD_COMPOUND = (
    Planted(
        "bursts, and another program locks a file",
        ((K.ARRIVALS, None), (K.LOCK, "preprocess")),
        {
            "at_once": _BURSTS,
            "always": (("preprocess", "lock_file"),),
            "beside": ("lock_file", Dose(0.15, 0.3), 0.05),
        },
    ),
    Planted(
        "programs start programs, and the receiver is slow",
        ((K.NEIGHBOUR, None), (K.RECEIVER, "deliver")),
        {"beside": ("start_programs", 8), "receiver": {"callback_seconds": Dose(0.1, 0.2)}},
    ),
    Planted(
        "PNG, and a service that is asked until it is done",
        ((K.INPUT_SIZE, None), (K.REMOTE, "lookup")),
        {"images": "png", "always": (("lookup", "poll"),), "service": _POLLED},
        frozenset({K.CODE}),
    ),
)
