"""Files from strangers: each ends in the verdict that is right for it, by whichever decoder, and in no time."""

from __future__ import annotations

import functools
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from benchmarks.hostile_inputs import HostileFile, binary, hostile_files, mutated_files
from benchmarks.hostile_inputs.files import (
    bombs,
    encoded,
    foreign_files,
    metadata_bombs,
    odd_files,
    picture,
    unusual_jpegs,
)
from benchmarks.hostile_inputs.mutations import good_files
from headrace.base.errors import DecodeRejected
from headrace.base.plan import DecodePlan
from headrace.stages.decode import DecodeChain, DecodeStage, ResizeStage, decode
from headrace.stages.inputs import ImageInput

DECODERS = ("auto", "opencv", "pillow")
SEED = 20261121


def verdict(data: bytes, **limits: Any) -> str:
    """Return `ok` or the code of the rejection; any other exception is the test's failure."""
    counts: dict[str, int] = {}
    try:
        image = DecodeChain(DecodePlan(**limits), 256, counts).decode(data)
    except DecodeRejected as error:
        code = error.code
    else:
        assert (image.dtype, image.ndim, image.shape[2]) == (np.uint8, 3, 3)
        return "ok"
    assert counts == {f"decode.rejected.{code.removeprefix('decode.')}": 1}
    return code


@functools.cache
def files() -> list[HostileFile]:
    """Return one file of every kind, but for the one that is large and right."""
    found = [file for file in hostile_files() if file.kind != "49 Mpx png of 48 KB"]
    assert len(found) > 90
    return found


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_kind_has_its_verdict(decoder: str) -> None:
    """Every kind of hostile, damaged or odd file ends as it should, whichever decoder the Plan names."""
    ends = {file.kind: verdict(file.data, decoder=decoder) for file in files()}
    assert [(file.kind, ends[file.kind]) for file in files() if ends[file.kind] not in file.verdicts] == []


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_verdict_of_every_decoder(decoder: str) -> None:
    """Whichever decoder the Plan names, the verdict is the same."""
    assert [file.kind for file in files() if verdict(file.data, decoder=decoder) != verdict(file.data)] == []


def test_a_large_legal_file() -> None:
    """A file as large as the limits allow is decoded, whatever it weighs."""
    assert verdict(odd_files()["49 Mpx png of 48 KB"]) == "ok"


def test_damaged_photographs() -> None:
    """Photographs damaged in every way and format end as they should, and alike by every decoder."""
    for file in mutated_files(432, SEED):
        verdicts = {verdict(file.data, decoder=decoder) for decoder in DECODERS}
        assert len(verdicts) == 1, file.kind
        assert verdicts <= file.verdicts, file.kind


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF, 100_000])
@pytest.mark.parametrize("decoder", DECODERS)
def test_chunk_longer_than_its_file(length: int, decoder: str) -> None:
    """A chunk of a PNG that says it is longer than the file costs nothing, where OpenCV alone would make room for it."""
    png = good_files()["png"]
    start = png.index(b"IDAT") - 4
    lie = png[:start] + length.to_bytes(4, "big") + png[start + 4 :]
    assert verdict(lie, decoder=decoder) == "decode.truncated"
    assert peak_growth(lie, decoder) < 5_000_000


@pytest.mark.slow
def test_many_damaged_photographs() -> None:
    """Tens of thousands of damaged photographs, alike by every decoder."""
    for file in mutated_files(20_000, SEED):
        verdicts = {verdict(file.data, decoder=decoder) for decoder in DECODERS}
        assert len(verdicts) == 1, file.kind
        assert verdicts <= file.verdicts, file.kind


@settings(max_examples=150)
@given(st.sampled_from(sorted(good_files())), st.data())
def test_bytes_replaced(kind: str, data: st.DataObject) -> None:
    """Any bytes anywhere in a good file lead to an image or to a rejection with a code."""
    good = good_files()[kind]
    start = data.draw(st.integers(0, len(good)))
    spoiled = good[:start] + data.draw(st.binary(max_size=64)) + good[data.draw(st.integers(start, len(good))) :]
    assert verdict(spoiled) == "ok" or verdict(spoiled).startswith("decode.")


@pytest.mark.parametrize("kind", ["jpeg", "progressive jpeg", "cmyk jpeg", "png", "webp", "lossless webp", "bmp"])
@pytest.mark.parametrize("closed", [False, True], ids=["cut", "cut and closed"])
@pytest.mark.parametrize("truncated_allowed", [False, True], ids=["", "LOAD_TRUNCATED_IMAGES"])
def test_cut_files_are_never_made_up(
    kind: str, closed: bool, truncated_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at 5 to 95 %, with an end put on or not, no decoder gives half an image, whatever Pillow was told."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_allowed)
    data = good_files()[kind]
    for percent in range(5, 100, 5):
        cut = data[: len(data) * percent // 100] + (binary.END_OF_IMAGE if closed else b"")
        for decoder in DECODERS:
            assert verdict(cut, decoder=decoder) in ("decode.truncated", "decode.corrupt"), (percent, decoder)


def test_a_pass_that_is_missing() -> None:
    """A progressive JPEG cut between two passes and closed is the whole picture, only coarser; elsewhere it is refused."""
    data, ends = good_files()["progressive jpeg"], []
    whole = decode(data).astype(int)
    for length in range(len(data) // 20, len(data)):
        cut = data[:length] + binary.END_OF_IMAGE
        if verdict(cut) == "ok":
            ends.append(length)
            assert np.abs(decode(cut).astype(int) - whole).mean() < 15
    assert len(ends) < 50
    starts = [position for position in range(len(data)) if data.startswith(b"\xff\xda", position)]
    assert all(min(abs(end - start) for start in [*starts, len(data)]) < 100 for end in ends)


def test_odd_files_have_the_right_pixels() -> None:
    """What is odd and right is read as Pillow reads it; of several pictures the first is taken."""
    for kind in odd_files().keys() - {"49 Mpx png of 48 KB", "16-bit png", "exif cut off", "exif that leads to itself"}:
        data = odd_files()[kind]
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
        image = decode(data).astype(int)
        assert image.shape == expected.shape, kind
        assert np.abs(image - expected).mean() < 2.5, kind  # CMYK is turned to RGB by two formulas


def test_pixels_do_not_depend_on_the_decoder() -> None:
    """Whichever decoder the Plan names, the picture is the same; JPEGs within what their transforms differ."""
    for file in files():
        images = [decode(file.data, plan=DecodePlan(decoder=name)) for name in DECODERS if verdict(file.data) == "ok"]  # type: ignore[arg-type]
        limit = 2.5 if file.data.startswith(b"\xff\xd8") else 0.0
        assert all(np.abs(image.astype(int) - images[0]).mean() <= limit for image in images), file.kind


def test_the_default_image_of_an_animation() -> None:
    """Of an animated PNG the default image is taken, also where the animation does not show it or cannot be read."""
    for kind, colour in (("without its default image", (0, 0, 255)), ("whose first frame is broken", (64, 128, 192))):
        for decoder in DECODERS:
            image = decode(odd_files()[f"animation {kind}"], plan=DecodePlan(decoder=decoder))  # type: ignore[arg-type]
            assert (image == colour).all(), (kind, decoder)


def test_colour_masks_of_a_bmp() -> None:
    """The masks in the header of a BMP say which byte is red."""
    assert (decode(odd_files()["bmp with masks in its header"]) == (200, 100, 50)).all()


def test_the_reason_names_the_setting() -> None:
    """A bomb is told with its size, the limit and the setting that raises it."""
    with pytest.raises(DecodeRejected) as caught:
        decode(bombs()["89 Mpx png"])
    assert caught.value.reason == (
        "decode.bomb: a png file of 9434 x 9434 pixels would decode to 89,000,356, more than max_pixels = 50,000,000 in "
        "[decode]"
    )


def test_limits_can_be_changed(photographs: dict[str, bytes]) -> None:
    """Each limit of the Plan is what is checked."""
    jpeg, animation = photographs["retina"], good_files()["animated gif"]  # 1200 x 1200
    progressive = good_files()["progressive jpeg"]
    assert verdict(jpeg, max_pixels=1_000_000, scale="full") == "decode.bomb"
    assert verdict(jpeg, max_side=1199) == "decode.bomb"
    assert verdict(jpeg, max_bytes=1000) == "decode.bomb"
    assert verdict(jpeg, max_decoded_bytes=1_000_000, scale="full") == "decode.bomb"
    assert verdict(jpeg, formats=("png",)) == "decode.format"
    assert verdict(animation, max_frames=1) == "decode.frames"
    assert verdict(progressive, max_scans=9) == "decode.scans"
    assert verdict(bombs()["30,000 x 1 png"], max_side=30_000) == "ok"
    assert verdict(encoded(picture(), "TIFF"), formats=("tiff",)) == "ok"


def test_a_large_photograph_is_reduced() -> None:
    """A JPEG of 100 Mpx is accepted where it is decoded at scale, and refused where every pixel is wanted."""
    photograph = encoded(Image.new("L", (11_600, 8_700)), "JPEG")
    assert decode(photograph, short_side=256).shape == (1088, 1450, 3)
    with pytest.raises(DecodeRejected, match="would decode to 100,920,000, more than max_pixels"):
        decode(photograph)


def test_limits_go_by_what_the_longer_side_needs() -> None:
    """Where the longer side is what counts, a file is measured by its reduced size too, and a bomb stays one."""
    photograph = encoded(Image.new("L", (11_600, 2_900)), "JPEG")

    def decoded(data: bytes, long_side: int, **limits: Any) -> tuple[int, ...]:
        return DecodeChain(DecodePlan(**limits), None, {}, long_side=long_side).decode(data).shape

    assert decoded(photograph, 640, max_pixels=1_000_000) == (363, 1450, 3)
    with pytest.raises(DecodeRejected, match="would decode to 2,102,500, more than max_pixels"):
        decoded(photograph, 2_900, max_pixels=1_000_000)
    large = binary.with_jpeg_size(good_files()["progressive jpeg"], 19_000, 19_000)
    with pytest.raises(DecodeRejected, match=r"would take .* bytes to decode"):  # it is kept whole whatever the scale
        decoded(large, 640)


def test_passes_are_kept_at_full_size_in_memory() -> None:
    """A progressive JPEG is held whole whatever the scale, and counts so."""
    large = binary.with_jpeg_size(good_files()["progressive jpeg"], 19_000, 19_000)
    with pytest.raises(
        DecodeRejected, match=r"would take .* bytes to decode, more than max_decoded_bytes = 400,000,000"
    ):
        decode(large, short_side=256)


def test_a_file_of_600_megabytes() -> None:
    """A file larger than any image is refused unread."""
    with pytest.raises(DecodeRejected, match="the file has 600,000,000 bytes; max_bytes = 256,000,000"):
        decode(bytes(600_000_000))


def peak_growth(data: bytes, decoder: str) -> int:
    """Return by how many bytes the resident memory of this process grew at most while it decoded."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here; proc(5)
    before = memory("VmHWM")
    verdict(data, decoder=decoder)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Return one of the kernel's figures of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


@pytest.mark.parametrize("decoder", DECODERS)
def test_metadata_takes_no_memory_with_it(decoder: str) -> None:
    """Hundreds of megabytes of compressed text and profile cost less than fifty, or four times what the file has."""
    grown = {file.kind: peak_growth(file.data, decoder) / max(50e6, 4 * len(file.data)) for file in metadata_bombs()}
    assert {kind: times for kind, times in grown.items() if times >= 1} == {}


def test_bombs_take_no_memory_with_them() -> None:
    """Bombs are refused before room is made for them; what may be decoded shows that the memory is measured."""
    grown = {kind: peak_growth(data, "auto") >> 20 for kind, data in bombs().items()}
    assert {kind: megabytes for kind, megabytes in grown.items() if megabytes >= 5} == {}
    assert peak_growth(odd_files()["49 Mpx png of 48 KB"], "auto") >> 20 >= 100


class Explosive:
    """Stands in the chain for a decoder that raises what none ought to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: Any) -> Any:
        """Raise it."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SyntaxError("broken PNG file"), "decode.corrupt"),
        (OverflowError("too large"), "decode.corrupt"),
        (RuntimeError(), "decode.corrupt"),
        (RecursionError("deep"), "decode.corrupt"),
        (OSError("image file is truncated"), "decode.truncated"),
        (MemoryError(), "decode.memory"),
    ],
)
def test_every_exception_of_a_decoder_is_a_verdict(error: Exception, code: str) -> None:
    """Whatever a decoder raises concerns the one item, under a code."""
    chain = DecodeChain(DecodePlan(), None, {})
    chain._decoders = dict.fromkeys(chain._decoders, Explosive(error))  # type: ignore[arg-type]
    with pytest.raises(DecodeRejected, match=re.escape(code)):
        chain.decode(good_files()["png"])


def test_foreign_formats_reach_no_decoder() -> None:
    """Postscript, SVG, PDF and their kin are refused by their first bytes; no decoder is asked, nor what it would call."""
    chain = DecodeChain(DecodePlan(), None, {})
    chain._decoders = dict.fromkeys(chain._decoders, Explosive(KeyboardInterrupt()))  # type: ignore[arg-type]
    for kind, data in foreign_files().items():
        with pytest.raises(DecodeRejected) as caught:
            chain.decode(data)
        assert caught.value.code == "decode.format", kind
    with pytest.raises(KeyboardInterrupt):  # so that it would have been noticed
        chain.decode(good_files()["png"])


@pytest.mark.parametrize("short_side", [8, 32, 64, 256, None])
@pytest.mark.parametrize("decoder", DECODERS)
def test_lossless_jpegs_reach_no_decoder(decoder: str, short_side: int | None) -> None:
    """A JPEG that cannot be reduced is refused by its header: decoders would write behind the room for the reduced one."""
    chain = DecodeChain(DecodePlan(decoder=decoder), short_side, {})  # type: ignore[arg-type]
    chain._decoders = dict.fromkeys(chain._decoders, Explosive(KeyboardInterrupt()))  # type: ignore[arg-type]
    for kind, data in unusual_jpegs().items():
        with pytest.raises(DecodeRejected, match=r"a jpeg file of kind SOF\d+ with \d+ bits") as caught:
            chain.decode(data)
        assert caught.value.code == "decode.format", kind


def test_too_narrow_is_counted(make_context: Any) -> None:
    """A line of one pixel that the resize refuses is counted with the others."""
    context = make_context()
    resize = ResizeStage("resize", ImageInput(short_side=256)).open(context)
    with pytest.raises(DecodeRejected, match=r"^decode\.bomb: the image is too narrow"):
        resize(np.zeros((1, 16_000, 3), np.uint8))
    assert context.counts == {"decode.rejected.bomb": 1}


def test_a_value_that_is_no_file_is_counted(make_context: Any) -> None:
    """Anything but bytes is rejected with a code of its own."""
    context = make_context()
    with pytest.raises(DecodeRejected, match=r"^decode\.type: "):
        DecodeStage("decode", ImageInput()).open(context)("a.jpg")
    assert context.counts == {"decode.rejected.type": 1}


def test_the_corpus_is_the_same_every_time() -> None:
    """Equal seeds give equal files, other seeds others."""
    first, again, other = (list(mutated_files(50, seed)) for seed in (1, 1, 2))
    assert first == again
    assert [file.data for file in first] != [file.data for file in other]
