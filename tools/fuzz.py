"""Coverage-guided fuzzing of what reads strangers' bytes, by atheris (pip install atheris; Linux, Python up to 3.13 or so).

    python tools/fuzz.py header  -runs=1000000     # the reader of image headers
    python tools/fuzz.py image   -runs=50000       # header, then every decoder
    python tools/fuzz.py message -runs=500000      # bodies of queue messages

Starts from good files. Arguments after the target are libFuzzer's (https://llvm.org/docs/LibFuzzer.html). Anything but a
result or a typed rejection is a crash, and libFuzzer writes the input to a file `crash-...` in the working folder.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
with atheris.instrument_imports(include=["headrace.stages", "headrace.sources.jobs"]):
    from benchmarks.hostile_inputs.messages import hostile_messages
    from benchmarks.hostile_inputs.mutations import good_files
    from headrace.base.errors import BadMessage, DecodeRejected
    from headrace.base.plan import DecodePlan
    from headrace.base.records import Message
    from headrace.sources.jobs import decode_message
    from headrace.stages.decode import DecodeChain
    from headrace.stages.image_header import image_format, read_header

#: Headers and chunks are at the front; less of the picture means more runs a second.
_HEADER_BYTES = 2_000
_chain = DecodeChain(DecodePlan(), 64, {})


def header(data: bytes) -> None:
    """Read a header."""
    format_ = image_format(data)
    if format_ is None:
        return
    try:
        found = read_header(data, format_)
    except DecodeRejected as error:
        _expect(error.code in ("decode.truncated", "decode.corrupt", "decode.bomb", "decode.format"), error)
    else:
        _expect(min(found.width, found.height, found.frames) >= 1 and 1 <= found.orientation <= 8, found)


def image(data: bytes) -> None:
    """Decode a file, or be told why not."""
    try:
        _chain.decode(data)
    except DecodeRejected as error:
        _expect(error.code.startswith("decode."), error)


def message(data: bytes) -> None:
    """Read a message, or be told why not."""
    try:
        decode_message(Message("m", data, "r", 1, 0.0))
    except BadMessage as error:
        _expect(error.code.startswith("message."), error)


def _expect(condition: bool, what: object) -> None:
    if not condition:
        raise RuntimeError(f"not what was expected: {what!r}")


TARGETS: dict[str, Callable[[bytes], None]] = {"header": header, "image": image, "message": message}


def main() -> None:
    """Fuzz the target that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python tools/fuzz.py {{{','.join(TARGETS)}}} [-runs=N ...]")
    target = sys.argv.pop(1)
    seeds = list(hostile_messages(30)) if target == "message" else list(good_files().values())
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(seeds):
            if len(seed) < 100_000:
                Path(folder, str(number)).write_bytes(seed[:_HEADER_BYTES] if target == "header" else seed)
        atheris.Setup([*sys.argv, folder], TARGETS[target])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
