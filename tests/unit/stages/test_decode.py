"""Bytes -> image, with Pillow's own reading as the oracle."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from benchmarks.hostile_inputs.files import damaged_files
from headrace.base.errors import DecodeRejected, SettingsError
from headrace.base.plan import DecodePlan
from headrace.stages.decode import DecodeChain, DecodeStage, ResizeStage, TextStage, decode
from headrace.stages.decoders import decode_opencv, upright
from headrace.stages.image_header import ImageHeader, image_format, read_header
from headrace.stages.images import fit
from headrace.stages.inputs import ImageInput, TextInput

DECODERS = ("simplejpeg", "opencv", "pillow")
Encode = Callable[..., bytes]


def read(data: bytes, decoder: str, short_side: int | None = None) -> np.ndarray:
    """The image as one decoder reads it, and no other."""
    counts: dict[str, int] = {}
    plan = DecodePlan(decoder=decoder, formats=("jpeg", "png", "webp", "gif", "bmp", "tiff"))  # type: ignore[arg-type]
    image = DecodeChain(plan, short_side, counts).decode(data)
    is_for_pillow = image_format(data) in ("gif", "bmp", "tiff")  # whatever the Plan says
    assert counts == {f"decode.decoder.{'pillow' if is_for_pillow else decoder}": 1}
    return image


def oracle(data: bytes) -> np.ndarray:
    """The upright image by Pillow alone."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Mean absolute difference in grey levels, 0 to 255."""
    return float(np.abs(one.astype(np.float32) - other.astype(np.float32)).mean())


@pytest.mark.parametrize("decoder", DECODERS)
def test_photographs(photograph: bytes, decoder: str) -> None:
    """Every decoder reads a real photograph to the same shape and, within rounding, the same pixels."""
    image, expected = read(photograph, decoder), oracle(photograph)
    assert (image.shape, image.dtype) == (expected.shape, np.uint8)
    assert np.abs(image.astype(int) - expected.astype(int)).max() <= 3


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("short_side", [32, 64, 128, 224, 256, 400, 5000])
def test_decode_at_scale_covers(photograph: bytes, decoder: str, short_side: int) -> None:
    """The short side is never under what is needed, nor is the image enlarged, nor its form changed by over a pixel."""
    image, full = read(photograph, decoder, short_side), oracle(photograph)
    assert min(image.shape[:2]) >= min(short_side, *full.shape[:2])
    assert image.shape <= full.shape
    scale = image.shape[0] / full.shape[0]
    assert abs(image.shape[1] - full.shape[1] * scale) <= 1 + scale


@pytest.mark.parametrize("decoder", DECODERS)
def test_decode_at_scale_saves_pixels(photographs: dict[str, bytes], decoder: str) -> None:
    """1200 x 1200 to cover 150 is decoded at one eighth."""
    assert read(photographs["retina"], decoder, 150).shape == (150, 150, 3)


def pair(data: bytes, decoder: str, short_side: int, interpolation: Any) -> tuple[np.ndarray, np.ndarray]:
    """The module's input by way of a scaled decode, and of a full one."""
    wanted = ImageInput(short_side=short_side, crop=short_side * 7 // 8, interpolation=interpolation)
    return fit(read(data, decoder, short_side), wanted), fit(read(data, decoder), wanted)


# Measured on the photographs, mean absolute difference in grey levels, for libjpeg-turbo's k/8: with `area`, the better
# filter, 1.2 to 2.1 on average and 7.8 at worst; with `linear` 2.0 to 7.4 and 18.3, most of which is the aliasing of the
# full decode, as the test below shows.
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("short_side", [64, 128, 224, 256])
@pytest.mark.parametrize(("interpolation", "on_average", "at_worst"), [("area", 2.5, 9), ("linear", 8.5, 20)])
def test_decode_at_scale_stays_close(
    photographs: dict[str, bytes], decoder: str, short_side: int, interpolation: str, on_average: float, at_worst: float
) -> None:
    """What the module gets differs little between a scaled and a full decode."""
    differences = [difference(*pair(data, decoder, short_side, interpolation)) for data in photographs.values()]
    assert max(differences) <= at_worst
    assert np.mean(differences) <= on_average


@pytest.mark.parametrize("decoder", DECODERS)
def test_decode_at_scale_is_nearer_to_the_truth(photographs: dict[str, bytes], decoder: str) -> None:
    """At large reductions the scaled decode is nearer to a proper resize than the full decode, which aliases."""
    scaled, full = [], []
    for data in photographs.values():
        one, other = pair(data, decoder, 64, "linear")
        image = Image.open(io.BytesIO(data)).convert("RGB")
        proper = image.resize([round(side * 64 / min(image.size)) for side in image.size], Image.Resampling.BOX)
        truth = fit(np.asarray(proper), ImageInput(short_side=64, crop=56))
        scaled.append(difference(one, truth))
        full.append(difference(other, truth))
    assert np.mean(scaled) < np.mean(full) / 2


def with_orientation(encode: Encode, picture: Image.Image, kind: str, value: int) -> bytes:
    """A file whose tag asks to be turned."""
    exif = Image.Exif()
    exif[0x0112] = value
    image = picture.convert("CMYK") if kind == "CMYK" else picture.convert("L") if kind == "grey" else picture
    if kind in ("PNG", "WEBP"):
        return encode(image, kind, exif=exif.tobytes(), lossless=True)
    return encode(image, "JPEG", exif=exif.tobytes(), quality=95)


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "grey", "CMYK", "PNG", "WEBP"])
@pytest.mark.parametrize("decoder", ["auto", "opencv", "pillow"])
def test_orientation(encode: Encode, picture: Image.Image, kind: str, value: int, decoder: Any) -> None:
    """All eight orientations come out upright, by every decoder and from every format that carries them."""
    data = with_orientation(encode, picture, kind, value)
    image, expected = decode(data, plan=DecodePlan(decoder=decoder)), oracle(data)
    assert image.shape == expected.shape
    assert difference(image, expected) < 2


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("decoder", DECODERS)
def test_orientation_at_scale(encode: Encode, picture: Image.Image, value: int, decoder: str) -> None:
    """A scaled decode turns as a full one does."""
    data = with_orientation(encode, picture, "JPEG", value)
    image, expected = read(data, decoder, 32), oracle(data)
    assert image.shape[:2] == (expected.shape[0] // 4, expected.shape[1] // 4)
    shrunk = cv2.resize(expected, image.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert difference(image, shrunk) < 6


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("value", range(1, 9))
def test_images_can_be_written_to_memory(encode: Encode, picture: Image.Image, value: int, decoder: str) -> None:
    """However it was turned, an image lies in memory row by row, as C code expects it."""
    assert read(with_orientation(encode, picture, "JPEG", value), decoder).flags.c_contiguous


@pytest.mark.parametrize("decoder", DECODERS)
def test_orientation_behind_a_large_header(encode: Encode, picture: Image.Image, decoder: str) -> None:
    """EXIF is found behind a colour profile of 60 KB."""
    data = with_orientation(encode, picture, "JPEG", 6)
    profile = b"\xff\xe2" + (60_002).to_bytes(2, "big") + b"x" * 60_000
    assert read(data[:2] + profile + data[2:], decoder).shape == (192, 128, 3)


def test_orientation_is_not_found_in_pixels(encode: Encode, picture: Image.Image) -> None:
    """What only looks like EXIF, in a comment or behind the image, turns nothing."""
    data = encode(picture, "JPEG", comment=b"Exif\0\0 is no header here")
    assert read_header(data + b"\xff\xe1\x00\x20Exif\x00\x00", "jpeg").orientation == 1
    assert read(data, "simplejpeg").shape == (128, 192, 3)


@pytest.mark.parametrize(
    "exif", [b"", b"rubbish", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff" + b"\0" * 40]
)
@pytest.mark.parametrize("decoder", DECODERS)
def test_orientation_of_rubbish(encode: Encode, picture: Image.Image, exif: bytes, decoder: str) -> None:
    """Broken EXIF turns nothing and harms nothing."""
    data = encode(picture, "JPEG")
    segment = b"\xff\xe1" + (8 + len(exif)).to_bytes(2, "big") + b"Exif\0\0" + exif
    image = decode(data[:2] + segment + data[2:], plan=DecodePlan(decoder=decoder))  # type: ignore[arg-type]
    assert image.shape == (128, 192, 3)
    assert difference(image, oracle(data)) < 1


@pytest.mark.parametrize("value", [0, 1, 9, 255])
def test_upright_ignores_what_is_no_orientation(value: int) -> None:
    """An image without need to turn is returned as it is, not copied."""
    image = np.zeros((2, 3, 3), np.uint8)
    assert upright(image, value) is image


@pytest.mark.parametrize("decoder", DECODERS)
def test_grey_jpeg(encode: Encode, picture: Image.Image, decoder: str) -> None:
    """A grey JPEG becomes three equal channels."""
    image = read(encode(picture.convert("L"), "JPEG"), decoder)
    assert image.shape == (128, 192, 3)
    assert (image == image[:, :, :1]).all()


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_cmyk_jpeg(encode: Encode, picture: Image.Image, decoder: str) -> None:
    """A CMYK JPEG, as printers' software writes it, has the colours of the picture."""
    assert difference(read(encode(picture.convert("CMYK"), "JPEG", quality=95), decoder), np.asarray(picture)) < 4


def test_cmyk_jpeg_is_left_to_the_next_decoder(encode: Encode, picture: Image.Image) -> None:
    """The fast decoder does not read CMYK; the next does, and the count says so."""
    counts: dict[str, int] = {}
    DecodeChain(DecodePlan(), None, counts).decode(encode(picture.convert("CMYK"), "JPEG"))
    assert counts == {"decode.decoder.opencv": 1}


def transparent(picture: Image.Image) -> Image.Image:
    """The picture, fading out."""
    image = picture.convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(picture.size))
    return image


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
@pytest.mark.parametrize("format_", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_lossless_formats(encode: Encode, picture: Image.Image, format_: str, decoder: str) -> None:
    """What a format without loss holds comes out exactly."""
    image = picture.quantize(64).convert("RGB") if format_ == "GIF" else picture
    data = encode(
        image.quantize(64) if format_ == "GIF" else image, format_, **({"lossless": True} if format_ == "WEBP" else {})
    )
    np.testing.assert_array_equal(read(data, decoder), oracle(data))


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_alpha_is_dropped(encode: Encode, picture: Image.Image, decoder: str) -> None:
    """Of a transparent PNG the colours remain, not blended with any background."""
    np.testing.assert_array_equal(read(encode(transparent(picture), "PNG"), decoder), np.asarray(picture))


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
@pytest.mark.parametrize("mode", ["P", "1", "LA", "transparent palette"])
def test_rare_kinds_of_png(encode: Encode, picture: Image.Image, mode: str, decoder: str) -> None:
    """Palettes, with a transparent colour too, single bits and grey with alpha become RGB."""
    if mode == "LA":
        data = encode(transparent(picture).convert("LA"), "PNG")
    elif mode == "1":
        data = encode(picture.convert("1"), "PNG")
    else:
        data = encode(picture.quantize(64), "PNG", **({"transparency": 0} if mode != "P" else {}))
    np.testing.assert_array_equal(read(data, decoder), oracle(data))


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
def test_16_bit_png(picture: Image.Image, decoder: str) -> None:
    """16-bit PNG, grey or colour, is scaled to 8 bits, not clipped."""
    colour = np.asarray(picture).astype(np.uint16) * 257
    for deep, expected in ((colour, colour), (colour[:, :, 0], np.repeat(colour[:, :, :1], 3, axis=2))):
        written = cv2.imencode(".png", np.ascontiguousarray(deep[..., ::-1] if deep.ndim == 3 else deep))[1].tobytes()
        image = read(written, decoder)
        assert np.abs(image.astype(int) - expected // 257).max() <= 1


@pytest.mark.parametrize("decoder", ["opencv", "pillow"])
@pytest.mark.parametrize("format_", ["GIF", "WEBP"])
def test_animations_give_their_first_frame(encode: Encode, format_: str, decoder: str) -> None:
    """Of an animation the first picture is taken."""
    red, blue = (Image.new("RGB", (64, 48), colour) for colour in ((200, 10, 10), (10, 10, 200)))
    settings = {"lossless": True} if format_ == "WEBP" else {}
    data = encode(red, format_, save_all=True, append_images=[blue], duration=50, **settings)
    np.testing.assert_array_equal(read(data, decoder), np.asarray(red))


def truncated(encode: Encode, picture: Image.Image, format_: str) -> bytes:
    """The first half of a file."""
    data = encode(picture, format_)
    return data[: len(data) // 2]


@pytest.mark.parametrize("decoder", ["auto", *DECODERS])
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_truncated(encode: Encode, picture: Image.Image, format_: str, decoder: Any) -> None:
    """Half a file is rejected; half an image would be answered wrongly."""
    data = truncated(encode, picture, format_)
    with pytest.raises(DecodeRejected, match=r"^decode\.truncated: .*check what the sender stored$"):
        decode(data, plan=DecodePlan(decoder=decoder))


@pytest.mark.parametrize(
    "data",
    [b"hello world", b"<!DOCTYPE html><html><body>503</body></html>", b"\0" * 10_000],
    ids=["text", "html", "zeros"],
)
def test_not_an_image(data: bytes) -> None:
    """What is no image is rejected, with its beginning, what is accepted, and what to do."""
    with pytest.raises(DecodeRejected) as caught:
        decode(data)
    message = str(caught.value)
    assert message.startswith(f"decode.format: a file of {len(data)} bytes begins with {data[:8].hex(' ')}")
    assert "formats = ['jpeg', 'png', 'webp', 'gif', 'bmp'] in [decode]" in message
    assert message.endswith("check what the sender stored")


@pytest.mark.parametrize("data", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"], ids=["jpeg", "png"])
def test_nothing_but_magic(data: bytes) -> None:
    """A file that ends after its first bytes is truncated."""
    with pytest.raises(
        DecodeRejected, match=rf"decode.truncated: the file ends within its header, after {len(data)} bytes"
    ):
        decode(data)


def test_the_same_fault_has_the_same_message() -> None:
    """No address in memory makes two equal rejections look different."""
    messages = []
    for _ in range(2):
        with pytest.raises(DecodeRejected) as caught:
            decode(b"hello world")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "0x" not in messages[0]


def test_a_reason_names_no_place_in_memory() -> None:
    """Pillow's own words for a file it cannot read name the buffer; ours do not."""
    (broken,) = (file.data for file in damaged_files() if file.kind == "png header with a wrong checksum")
    with pytest.raises(DecodeRejected) as caught:
        decode(broken)
    assert "pillow: not decodable" in str(caught.value)
    assert "0x" not in str(caught.value)


def test_opencv_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged file leaves no line of OpenCV's on stderr; the reason is with the item."""
    with pytest.raises(ValueError, match="not decodable"):
        decode_opencv(b"\x89PNG\r\n\x1a\n" + b"x" * 90, ImageHeader("png", 8, 8), 1)
    assert capfd.readouterr().err == ""


def test_no_bytes() -> None:
    """An empty download is rejected and called empty."""
    with pytest.raises(DecodeRejected, match="there are no bytes to decode"):
        decode(b"")


def test_a_decoder_that_refuses_is_followed_by_the_others(encode: Encode, picture: Image.Image) -> None:
    """A decoder that the Plan names comes first, and the others remain as the fallback."""
    counts: dict[str, int] = {}
    chain = DecodeChain(DecodePlan(decoder="simplejpeg"), None, counts)
    chain.decode(encode(picture, "PNG"))
    chain.decode(encode(picture, "JPEG"))
    assert counts == {"decode.decoder.opencv": 1, "decode.decoder.simplejpeg": 1}


def test_full_scale_decodes_every_pixel(photographs: dict[str, bytes]) -> None:
    """With scale = "full" the module's wish for less does not count."""
    image = decode(photographs["retina"], short_side=100, plan=DecodePlan(scale="full"))
    assert image.shape == (1200, 1200, 3)


def test_the_buffer_never_leaks_into_a_later_image(photographs: dict[str, bytes], make_context: Any) -> None:
    """Images resized by one worker, larger and smaller by turns, are those of fresh buffers, and none changes later."""
    wanted = ImageInput(short_side=128, crop=128)
    resize = ResizeStage("resize", wanted)
    decode_one = DecodeStage("decode", wanted).open(make_context(next_stage=resize))
    resize_one = resize.open(make_context())
    order = sorted(photographs, key=lambda name: len(photographs[name]))
    order = [name for both in zip(order, reversed(order), strict=True) for name in both]
    images = [resize_one(decode_one(photographs[name])) for name in order]
    for name, image in zip(order, images, strict=True):
        np.testing.assert_array_equal(image, fit(decode(photographs[name], short_side=128), wanted))


def test_small_images_survive_the_buffer(encode: Encode, picture: Image.Image, make_context: Any) -> None:
    """An image that needs no resize is no view of the buffer either."""
    wanted = ImageInput(short_side=64, crop=64)
    resize = ResizeStage("resize", wanted)
    decode_one = DecodeStage("decode", wanted).open(make_context(next_stage=resize))
    resize_one = resize.open(make_context())
    white = resize_one(decode_one(encode(Image.new("RGB", (64, 64), "white"), "JPEG")))
    resize_one(decode_one(encode(Image.new("RGB", (64, 64), "black"), "JPEG")))
    assert (white == 255).all()


def test_without_a_resize_next_every_image_is_its_own(photographs: dict[str, bytes], make_context: Any) -> None:
    """Where the image leaves the worker as it is, no buffer is reused."""
    decode_one = DecodeStage("decode", ImageInput()).open(make_context())
    first = decode_one(photographs["chelsea"])
    kept = first.copy()
    decode_one(photographs["retina"])
    np.testing.assert_array_equal(first, kept)


def test_surplus_bytes_are_counted_and_not_printed(photograph: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """A JPEG with bytes that belong to nothing is read whole, as a note of the run, and no library writes to stderr."""
    counts: dict[str, int] = {}
    odd = photograph[: photograph.rindex(b"\xff\xd9")] + b"\x01" * 1214 + b"\xff\xd9"
    image = DecodeChain(DecodePlan(), None, counts).decode(odd)
    assert np.abs(image.astype(int) - oracle(photograph).astype(int)).max() <= 3
    assert counts == {"decode.extraneous": 1, "decode.decoder.pillow": 1}
    assert capfd.readouterr().err == ""


def test_decode_stage_counts_who_served(photographs: dict[str, bytes], make_context: Any) -> None:
    """Which decoder served is counted with the run."""
    context = make_context(decode=DecodePlan(decoder="pillow"))
    DecodeStage("decode", ImageInput()).open(context)(photographs["chelsea"])
    assert context.counts == {"decode.decoder.pillow": 1}


def test_decode_stage_passes_arrays(make_context: Any) -> None:
    """A frame that is an array already goes through untouched."""
    frame = np.zeros((4, 5, 3), np.uint8)
    assert DecodeStage("decode", ImageInput()).open(make_context())(frame) is frame


def test_decode_stage_takes_bytes_only(make_context: Any) -> None:
    """Anything else is rejected by the name of its type."""
    with pytest.raises(DecodeRejected, match="expected the bytes of an image, got str"):
        DecodeStage("decode", ImageInput()).open(make_context())("a.jpg")


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8"])
def test_a_mark_of_utf_8_is_no_part_of_the_text(encoding: str, make_context: Any) -> None:
    """As editors on Windows put it in front; elsewhere in the text it is a character."""
    decode_one = TextStage("decode", TextInput(encoding)).open(make_context())
    assert decode_one(b"\xef\xbb\xbfcaf\xc3\xa9\r\n") == "caf\xe9\r\n"
    assert decode_one(b"a\xef\xbb\xbf") == "a\ufeff"
    with pytest.raises(DecodeRejected, match=r"decode\.text: the bytes are not"):
        decode_one(b"\xef\xbb\xbf\xff")


def test_text_stage(make_context: Any) -> None:
    """Bytes become text in the encoding asked for; text passes."""
    decode_one = TextStage("decode", TextInput("latin-1")).open(make_context())
    assert [decode_one(b"caf\xe9"), decode_one("café")] == ["café", "café"]


def test_text_stage_rejects_other_bytes(make_context: Any) -> None:
    """Bytes that are not of the encoding are rejected for good."""
    with pytest.raises(DecodeRejected, match="the bytes are not utf-8 text: "):
        TextStage("decode", TextInput()).open(make_context())(b"caf\xe9")


def test_text_in_no_encoding() -> None:
    """An encoding that does not exist is told before the first item."""
    with pytest.raises(SettingsError, match="encoding = 'utf-88' is not possible"):
        TextInput("utf-88")


def half_clear(format_: str) -> bytes:
    """A red picture whose left half is transparent, with another red beneath."""
    image = Image.new("RGBA", (32, 16), (200, 0, 0, 255))
    image.paste((40, 0, 0, 0), (0, 0, 16, 16))
    file = io.BytesIO()
    if format_ == "palette":
        colours = Image.new("P", (32, 16), 1)
        colours.putpalette([40, 0, 0, 200, 0, 0])
        colours.paste(0, (0, 0, 16, 16))
        colours.save(file, "PNG", transparency=0)
    else:
        image.save(file, format_, **({"lossless": True, "exact": True} if format_ == "WEBP" else {}))
    return file.getvalue()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("format_", ["PNG", "palette", "WEBP", "GIF"])
def test_transparent_pixels_show_the_background(format_: str, decoder: str) -> None:
    """With a background, transparent pixels have its colour and opaque ones their own, whichever decoder the Plan names."""
    plan = DecodePlan(decoder=decoder)  # type: ignore[arg-type]
    image = decode(half_clear(format_), plan=plan, background="#fa8040")
    assert (image[:, :16] == (250, 128, 64)).all()
    assert np.abs(image[:, 16:].astype(int) - (200, 0, 0)).max() <= 1
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous


def test_half_transparent_pixels_are_blended() -> None:
    """Alpha says how much of the background shines through."""
    file = io.BytesIO()
    Image.new("RGBA", (8, 8), (0, 100, 255, 51)).save(file, "PNG")
    assert np.abs(decode(file.getvalue(), background="#ffffff").astype(int) - (204, 224, 255)).max() <= 1


def test_without_a_background_alpha_is_dropped() -> None:
    """Unless a background is named, a transparent pixel has the colour that the file gives it."""
    for format_ in ("PNG", "palette", "WEBP"):
        assert (decode(half_clear(format_))[:, :16] == (40, 0, 0)).all(), format_


def test_a_background_changes_nothing_that_is_opaque(photographs: dict[str, bytes]) -> None:
    """Files without alpha, JPEGs at scale among them, are read as before."""
    for data in (photographs["coffee"], encoded_png(photographs["coffee"])):
        assert (decode(data, short_side=64, background="#ff0000") == decode(data, short_side=64)).all()


def encoded_png(jpeg: bytes) -> bytes:
    """The same picture as a PNG."""
    file = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).save(file, "PNG")
    return file.getvalue()


def test_the_background_of_an_input_reaches_the_decoder(make_context: Any) -> None:
    """A module's ImageInput says the background, also where the Plan scales its input."""
    wanted = ImageInput(short_side=16, background="#0000ff")
    assert wanted.scaled_to(8).background == "#0000ff"
    image = DecodeStage("decode", wanted).open(make_context())(half_clear("PNG"))
    assert (image[:, :16] == (0, 0, 255)).all()


@pytest.mark.parametrize("background", ["white", "#fff", "ffffff", "#gggggg", ""])
def test_a_background_is_a_colour(background: str) -> None:
    """What is no colour of six digits is refused when the input is written down."""
    with pytest.raises(SettingsError, match="background"):
        ImageInput(background=background)
