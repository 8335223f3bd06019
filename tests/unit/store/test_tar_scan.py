"""What a walk over a tar file finds, in files of Python's `tarfile`, of headrace and of nobody who means well."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from itertools import islice
from pathlib import Path

import pytest

from headrace.store.tar_header import END, BadHeader, make_header, make_headers, padded, read_header, read_pax
from headrace.store.tar_scan import Flaw, Member, TarScan


def scan(content: bytes, tmp_path: Path) -> tuple[list[tuple[str, bytes]], list[Flaw], TarScan]:
    """Return the members with their bytes, the flaws, and the scan."""
    path = tmp_path / "scanned.tar"
    path.write_bytes(content)
    handle = os.open(path, os.O_RDONLY)
    try:
        walk = TarScan(handle)
        found = list(walk)
    finally:
        os.close(handle)
    members = [(one.name, content[one.offset : one.offset + one.length]) for one in found if isinstance(one, Member)]
    return members, [one for one in found if isinstance(one, Flaw)], walk


def tar_of(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar made by Python's tarfile."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def special(kind: bytes, name: str = "odd", link: str = "") -> bytes:
    """Return the header of a member that is no file, made by Python's tarfile."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


def own(name: str, data: bytes) -> bytes:
    """Return a member as headrace writes it."""
    return make_headers(name, len(data)) + data.ljust(padded(len(data)), b"\0")


NAMES = [
    "a.jpg",
    "much/deeper/b.jpg",
    "n" * 100,
    "d/" * 60 + "c.jpg",
    "\u00e4\u00f6\u4e2d/\U0001f600.png",
    "x" * 300 + ".jpg",
]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_files_of_tarfile_are_found_as_it_finds_them(form: int, tmp_path: Path) -> None:
    """Names of every length and script, in both forms, and files of sizes around a block."""
    files = {name: os.urandom(size) for name, size in zip(NAMES, [0, 1, 511, 512, 513, 70_000], strict=True)}
    members, flaws, walk = scan(tar_of(files, form), tmp_path)
    assert dict(members) == files
    assert not flaws
    assert walk.has_end
    assert walk.num_archives == 1


def test_ustar_with_a_prefix_is_read(tmp_path: Path) -> None:
    """A name of 150 characters is in two fields."""
    name = "p" * 80 + "/" + "n" * 70
    members, _, _ = scan(tar_of({name: b"x"}, tarfile.USTAR_FORMAT), tmp_path)
    assert members == [(name, b"x")]


@pytest.mark.parametrize("seed", range(20))
def test_tarfile_reads_what_headrace_writes(seed: int, tmp_path: Path) -> None:
    """Random names and contents come out of Python's tarfile as they went in."""
    draw = random.Random(seed)
    names = {
        "".join(draw.choices("ab./\u00e4\u4e2d-_", k=draw.randint(1, 240))).replace("..", "").strip("/.") or "x"
        for _ in range(20)
    }
    files = {f"{number}{name}": draw.randbytes(draw.randint(0, 3_000)) for number, name in enumerate(sorted(names))}
    content = b"".join(own(name, data) for name, data in files.items()) + END
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        read = {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]
    assert read == files
    assert dict(scan(content, tmp_path)[0]) == files


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (special(tarfile.SYMTYPE, link="/etc/passwd"), "tar.link"),
        (special(tarfile.LNKTYPE, link="good.jpg"), "tar.link"),
        (special(tarfile.CHRTYPE), "tar.special"),
        (special(tarfile.BLKTYPE), "tar.special"),
        (special(tarfile.FIFOTYPE), "tar.special"),
        (special(b"Z"), "tar.special"),
        (special(b"M"), "tar.special"),
        (own("../../etc/cron.d/x", b""), "tar.path"),
        (own("a/../../x.jpg", b""), "tar.path"),
        (own("/etc/passwd", b""), "tar.path"),
        (own("n" * 5_000, b""), "tar.name"),
    ],
)
def test_what_is_no_plain_file_costs_only_itself(header: bytes, code: str, tmp_path: Path) -> None:
    """Links, devices, and names that lead elsewhere are flaws; the files around them are read."""
    members, flaws, _ = scan(own("good.jpg", b"1") + header + own("other.jpg", b"2") + END, tmp_path)
    assert members == [("good.jpg", b"1"), ("other.jpg", b"2")]
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == [code]


def test_folders_are_no_flaws(tmp_path: Path) -> None:
    """What a tar of a folder holds beside files is passed by."""
    members, flaws, _ = scan(special(tarfile.DIRTYPE, "photos/") + own("photos/a.jpg", b"1") + END, tmp_path)
    assert members == [("photos/a.jpg", b"1")]
    assert not flaws


@pytest.mark.parametrize(
    ("kind", "num_flaws"),
    [(tarfile.DIRTYPE, 0), (tarfile.LNKTYPE, 1), (tarfile.SYMTYPE, 1), (tarfile.CHRTYPE, 1), (tarfile.FIFOTYPE, 1)],
)
def test_a_size_of_what_has_no_data_skips_no_file(kind: bytes, num_flaws: int, tmp_path: Path) -> None:
    """A folder of 1,024 bytes, as POSIX allows, hid the next file, and nothing said so; tarfile reads it."""
    info = tarfile.TarInfo("odd")
    info.type, info.size, info.linkname = kind, 1_024, "good.jpg"
    content = own("good.jpg", b"1") + info.tobuf(tarfile.USTAR_FORMAT) + own("b.jpg", b"2") + own("c.jpg", b"3") + END
    members, flaws, _ = scan(content, tmp_path)
    assert members == [("good.jpg", b"1"), ("b.jpg", b"2"), ("c.jpg", b"3")]
    assert len(flaws) == num_flaws


def test_a_hard_link_with_data_in_pax_form_is_passed_by_with_them(tmp_path: Path) -> None:
    """POSIX allows that, where the record before it says so."""
    info = tarfile.TarInfo("odd")
    info.type, info.size, info.linkname, info.pax_headers = tarfile.LNKTYPE, 3, "good.jpg", {"size": "3"}
    content = info.tobuf(tarfile.PAX_FORMAT) + b"abc".ljust(512, b"\0") + own("b.jpg", b"2") + END
    members, flaws, _ = scan(content, tmp_path)
    assert members == [("b.jpg", b"2")]
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.link"]


def test_a_hard_link_with_data_and_no_record_of_their_size_is_passed_by_with_them(tmp_path: Path) -> None:
    """So other tools write archives in PAX form; what they carry was taken for a damaged header, and all behind it was lost."""
    info = tarfile.TarInfo("odd")
    info.type, info.size, info.linkname, info.pax_headers = tarfile.LNKTYPE, 3, "good.jpg", {"mtime": "1.5"}
    link = info.tobuf(tarfile.PAX_FORMAT) + b"abc".ljust(512, b"\0")
    for behind, found in ((own("b.jpg", b"2") + END, [("b.jpg", b"2")]), (b"", [])):
        members, flaws, _ = scan(own("good.jpg", b"1") + link + behind, tmp_path)
        assert members == [("good.jpg", b"1"), *found]
        assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.link"]


def test_a_size_ends_at_its_first_nul(tmp_path: Path) -> None:
    """As every other tool reads it: here as nothing, although digits follow."""
    block = bytearray(make_header(b"a.jpg", 0))
    block[124:136], block[148:156] = b"\0" * 7 + b"0016\0", b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with tarfile.open(fileobj=io.BytesIO(bytes(block) + END)) as tar:
        assert tar.getmember("a.jpg").size == 0
    assert scan(bytes(block) + END, tmp_path)[0] == [("a.jpg", b"")]


def test_a_sparse_file_is_a_flaw_in_both_forms(tmp_path: Path) -> None:
    """GNU's old form, with a map that goes on behind the header, and the PAX form."""
    old = bytearray(special(b"S"))
    old[482] = 1
    old[124:136] = b"%011o\0" % 3
    old[148:156] = b"        "
    old[148:156] = b"%06o\0 " % sum(old)
    records = b"22 GNU.sparse.major=1\n27 GNU.sparse.name=holes.b\n16 path=GNUSpar\n"
    pax = make_header(b"PaxHeaders", len(records), "x") + records.ljust(512, b"\0") + own("sparse", b"abc")
    content = bytes(old) + bytes(512) + b"abc".ljust(512, b"\0") + pax + own("good.jpg", b"1") + END
    members, flaws, _ = scan(content, tmp_path)
    assert members == [("good.jpg", b"1")]
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.sparse", "tar.sparse"]
    assert flaws[1].name == "holes.b"


@pytest.mark.parametrize("cut", [1, 100, 511, 512, 513, 1_024, 1_030])
def test_a_file_that_is_cut_off_never_gives_half_a_member(cut: int, tmp_path: Path) -> None:
    """Wherever the end is missing, members are whole or flaws."""
    content = own("a.jpg", b"a" * 600) + own("b.jpg", b"b" * 600)
    members, flaws, _ = scan(content[:-cut], tmp_path)
    assert [name for name, _ in members] == ["a.jpg"] + ["b.jpg"] * (cut <= padded(600) - 600)
    assert all(data == name[:1].encode() * 600 for name, data in members)
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.truncated"] * (2 - len(members))


def test_a_wrong_checksum_ends_what_can_be_read_and_says_how_much_is_lost(tmp_path: Path) -> None:
    """Behind a damaged header no other can be found for sure."""
    broken = bytearray(own("b.jpg", b"2"))
    broken[0] ^= 1
    members, (flaw,), _ = scan(own("a.jpg", b"1") + bytes(broken) + own("c.jpg", b"3") + END, tmp_path)
    assert members == [("a.jpg", b"1")]
    assert flaw.offset == 1_024
    assert flaw.reason.startswith("tar.damaged: no tar header at byte 1,024 (its checksum says")
    assert flaw.reason.endswith("the last 3,072 bytes are not read")


def test_archives_one_behind_the_other_are_all_read(tmp_path: Path) -> None:
    """`cat a.tar b.tar` is common; tar itself would need --ignore-zeros."""
    members, flaws, walk = scan(tar_of({"a.jpg": b"1"}) + tar_of({"b.jpg": b"2"}), tmp_path)
    assert members == [("a.jpg", b"1"), ("b.jpg", b"2")]
    assert not flaws
    assert walk.num_archives == 2


def test_bytes_behind_the_end_that_are_no_archive_are_said(tmp_path: Path) -> None:
    """Nothing is left out silently."""
    members, (flaw,), _ = scan(tar_of({"a.jpg": b"1"}) + b"rest" * 200, tmp_path)
    assert members == [("a.jpg", b"1")]
    assert flaw.reason.startswith("tar.damaged")


@pytest.mark.parametrize("size", [b"\x80" + b"\x00" * 3 + b"\x7f" + b"\xff" * 7, b"77777777777\0"])
def test_a_size_beyond_the_file_is_cut_off_and_allocates_nothing(size: bytes, tmp_path: Path) -> None:
    """A member that says it has exabytes, or 8 GB, is a flaw."""
    block = bytearray(make_header(b"bomb.jpg", 0))
    block[124:136] = size
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    members, (flaw,), _ = scan(bytes(block) + END, tmp_path)
    assert not members
    assert flaw.reason.startswith("tar.truncated: 1,024 of its")


@pytest.mark.parametrize("kind", [b"0", b"L", b"x", b"5"])
@pytest.mark.parametrize(
    "size", [b"-0000000001\0", b"-0000001000\0", b"+0000000001\0", b"0_000000001\0", b"0o000000007\0"]
)
def test_a_size_with_a_sign_is_no_header(size: bytes, kind: bytes, tmp_path: Path) -> None:
    """Python takes it for a number; a negative one led back to its own header for ever, or to an error of the system."""
    block = bytearray(own("a", b"1"))
    block[124:136], block[156:157], block[148:156] = size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    (tmp_path / "a.tar").write_bytes(block + own("b", b"2") + END)
    handle = os.open(tmp_path / "a.tar", os.O_RDONLY)
    try:
        (flaw,) = islice(TarScan(handle), 3)
    finally:
        os.close(handle)
    assert isinstance(flaw, Flaw)
    assert flaw.reason.startswith("tar.damaged: no tar header at byte 0")
    assert "is no octal number" in flaw.reason


def test_a_negative_size_is_no_header(tmp_path: Path) -> None:
    """It would lead the walk backwards, for ever."""
    block = bytearray(make_header(b"loop.jpg", 0))
    block[124:136] = b"\xff" * 12
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    _, (flaw,), _ = scan(bytes(block) + END, tmp_path)
    assert "negative" in flaw.reason


@pytest.mark.parametrize(
    "records", [b"9 path=x", b"99 path=x\n", b"x path=y\n", b"11 size=-1\n", b"0 \n", b"8 abcd\n\n", b"12 size=1e9\n\n"]
)
def test_damaged_records_in_pax_form_are_no_header(records: bytes, tmp_path: Path) -> None:
    """A length that is wrong in any way, and a size that is no number, end the walk."""
    content = make_header(b"PaxHeaders", len(records), "x") + records.ljust(512, b"\0") + own("a.jpg", b"1") + END
    members, flaws, _ = scan(content, tmp_path)
    assert not members
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.damaged"]


def test_records_of_gigabytes_are_not_read(tmp_path: Path) -> None:
    """A header before a member is bounded: this one has 2 MiB."""
    size = 2 << 20
    content = make_header(b"PaxHeaders", size, "x") + bytes(size) + own("a.jpg", b"1") + own("b.jpg", b"2") + END
    members, (flaw,), _ = scan(content, tmp_path)
    assert members == [("b.jpg", b"2")]
    assert flaw.reason.startswith("tar.header")


def test_one_name_for_all_members_is_refused(tmp_path: Path) -> None:
    """A global header with a path would make every member the same item."""
    records = b"15 path=mine.x\n"
    content = make_header(b"g", len(records), "g") + records.ljust(512, b"\0") + own("a.jpg", b"1") + END
    members, flaws, _ = scan(content, tmp_path)
    assert not members
    assert flaws[0].reason.startswith("tar.damaged")


@pytest.mark.parametrize("content", [b"", END, bytes(10_240)])
def test_an_empty_archive_has_nothing_and_no_flaw(content: bytes, tmp_path: Path) -> None:
    """Whether that is an error is for whoever asked."""
    members, flaws, _ = scan(content, tmp_path)
    assert not members
    assert not flaws


def test_a_compressed_file_is_named_as_one(tmp_path: Path) -> None:
    """The reason says which way out there is."""
    _, (flaw,), _ = scan(gzip.compress(tar_of({"a.jpg": b"1"})), tmp_path)
    assert "compressed (gzip)" in flaw.reason


def test_random_bytes_end_in_one_flaw(tmp_path: Path) -> None:
    """Never in an exception, a hang or a member: 300 damaged copies of an archive."""
    draw = random.Random(7)
    good = tar_of({f"{number}/{'n' * number}.jpg": draw.randbytes(700) for number in range(1, 130, 16)})
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(draw.choice([1, 2, 8, 100])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        members, _, _ = scan(bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])]), tmp_path)
        assert len(members) <= 9


def test_headers_that_are_none_are_refused() -> None:
    """A short block, and numbers that are none."""
    with pytest.raises(BadHeader, match="10 of 512"):
        read_header(bytes(10))
    with pytest.raises(BadHeader):
        read_header(b"not a header".ljust(512, b" "))
    assert read_pax(b"") == {}


@pytest.mark.parametrize("name", ["a.jpg", "deep/" * 30 + "a.jpg"])
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_file_that_was_packed_twice_is_there_once(form: int, name: str, tmp_path: Path) -> None:
    """Tar makes the second one a hard link to its own name; one to another file stays a flaw, as does one before its file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for target, kind in ((name, "link"), (None, "file"), (name, "link"), ("other.jpg", "link")):
            info = tarfile.TarInfo(name)
            if kind == "link":
                info.type, info.linkname = tarfile.LNKTYPE, target or ""
            else:
                info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    members, flaws, _ = scan(out.getvalue(), tmp_path)
    assert members == [(name, b"abc")]
    assert [flaw.reason.partition(":")[0] for flaw in flaws] == ["tar.link", "tar.link"]
