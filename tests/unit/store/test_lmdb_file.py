"""LMDB files without its library."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import random
import zlib
from pathlib import Path

import pytest

from headrace.store.lmdb_file import LmdbReader, NoTable, NotLmdb, write_lmdb

#: What liblmdb 0.9.36 wrote: the named database `images` in a file without a folder, keys k000 to k029 in two commits, and k003
#: deleted in a third. The value of key N is b"N " repeated 60 * N times.
WRITTEN = """
c-rmVy>C<J9>DR(#z~yllQ&*UFK|#(m7)%g<HYgCm_MOImP)O9tEy6@GGy$)(1D>t2ZsIu85sBj&=o=qj2$vCU1em5)D8>`42_-VJSX_7+(H6zlF#?~2
%8^-hLA#@bB^s0it4>@|NH2V|5U=krqfORR{0~Z|C|u2@%H9x)4%`umA`qrT9713k|aq-UFC@P|DV0({(rLX?auilkt9iyB<aYj9=JCf9%qlU{qH>w+u
>2TAMS-aVI!=Ewa|Lwud|tT_w=>!eWTgD7-vtW(rocUaWtWvHO|M``eZR%?99j6)<l}E&c)e_@ic4C#@VfMwlWiEcgNCfIUc<T&qmX%H5O+J<!os*&Nk
|4)~v_b!;$W{z1dzl0C0lT%YVoBRt^9I??!JYT2JT4%j@JDy}kQz`0j_VzWwIMVlQ8uUmuFMAH~}%@%G05oNup&t6_WSMYfUMo(hxm;}7cFLqAm=A<_G
6?OgFSS)<*~Ez3IW`n{U|pITYTE$j5GFU!yE<>lP6j(+V_(&t#Km0PEI{k#0LURuhn53&9X>0{n(=4WedmcRGzLFr>zp?n`2wFCSA`LI*JKe1E)&4chI
9doO-^!HS!lUtT$z1@0L9$#Kv%`MA1smr+{%R1UMl)l=ogiB#NdztNKJK1(-_aRA=BuUa>*L#>-e4N{GD9@qQ%KPo&y8q$yR^7+{KOBEJzEyMmzobFRV
|M{ypX=i+%R0;&Ik5k~9G-{W`a)&8@@nti>B{r}0f6WKvwH;KEUTv-a;^8Afs4%?0N}lHWs~%7Isb22)?wCY|Neg|2LPatou?$}q&L>T|8M000GtB8(v
>6~Y&_lTKL6k2?6GJ5mn2D&BxwL^^!Dz<;kzHc`u3Y2i@kg${%9@U7SH!zZ10QL{hN4g|G$&%*#AqCBuSEV;+pP#TMxwx`Bl<xf4|As_W#cROOhl>k~E
mT`TT!zp8unGdo|up_1$)l3|tORvzOU!wv%mVPaOx4BuSDaY2fz%mwWfSuLaUv%F_MC#&Ejd=+w&l?f%CDbbpPTVJ+;|7b?@0SK)cs4v)h9a4*~m8)1F
#M_QqHE}1W;yGIN5|67;hTW@A**1Q;JPo~mr@j{$Um$SzCI9s1AW{aKqINO>?v(>pcdoiA7?b$fHRnAss;_U8Nnk`Sq*|X6!YZcFVxKPfPiq}EdsHa)8
cx}Xo<?9A7dKF~=I9clDzvB(B{0zWZHl6nW@%jIka{vH17S8QS()(+sfB(Od0{{U3(1-lmeYI9z+uO-4%d*~X&GzsA+c^LLaGJRg8qTD-{{8=I4gdf!P
@K87ti!MQ{{4R^2LJ%zkUZL4AEJ@Bc>e$Mef$4rBL@Hg;0$V8r+QuJ-~TV>0001RG7RwAEYHDrUzGM(Rw&<x#>M{q|K2+Z0002IAIJ4rflCMW|JCmPe<
=q5002ll(}E;Pk|aqdqs!@DHCzq1v)$}j_9T0d{g(Zl-OhY`BuSDaNqX15o)4kYd;EQ~^J$ztm`k(OPvY#=Y?`&N$JtsrTe%izzs{uD@|8H-nNG9T$8q
*WIa?~O`~Nt-SMmD)Rt^9F0C1u?`Xot`BuP4pUFkpnznlXA008iTIZ7o-k|aqwY}fkF|F7f#0002+e>t)yNs=T<gVpu^^Z)G}00000P9;YJB}tMbo#sC
2KmWg)0{{R300Y7iOi7X?N&mD@`_KP(asU7T0DyPqsH-GNl5{+MmhM%<eAvo%vaPK9z2{*&JPP;2y>KUNg!Ql%T5tSyHuv7D5^CZ5MzeV_&Yn!A+2Vyb
n=WUK^KrI5S<DtY^KrH{k!GuNarR<7&DyhZcB`DN%*5H<u{2wrj<aW@Y1SHxvxRcDG#Y0c^)zeN<Lu$c{`C=iv%PWv-~_3c|Bmmi8~_I1jowbQ9?qq!_
4k{Ix8w14B;F1c`|bF4)%g8N+U@UmBkkZT;c|GIz07vAooqXMnmINiNs=T<(qZ~~KAi*a6pz1uFqdYl#dGq%noYCz^*CEAXDip@?AMvFw|6g&Z8w*)P#
)(VPWKy~T6w?yd3@W?(|c77{|aj(FS3p7_SDZ43u9{|+e1H9n|Tv}6QG^9^WUrK@A;LL-1-p9$J{!t>&x<UdwDsxtfOB$mGn8*YUS2xUVoPR(C*hPXKH
PhzxVD%X~(ic`93sm9@ziShhMU%*)P4r2YGW500006+X>$P7uWgM`mXaY9;ZJQZztpJx!11afBVM=`~`<m(LM
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file that the library wrote."""
    file = tmp_path / "written.lmdb"
    file.write_bytes(zlib.decompress(base64.b85decode("".join(WRITTEN.split()))))
    return file


def read(file: Path, table: str | None = None) -> list[tuple[bytes, bytes]]:
    """Return all pairs of a file."""
    handle = os.open(file, os.O_RDONLY)
    try:
        return list(LmdbReader(handle).pairs(table))
    finally:
        os.close(handle)


def write(file: Path, pairs: dict[bytes, bytes]) -> Path:
    """Write pairs."""
    keys = sorted(pairs)
    with file.open("wb") as out:
        write_lmdb(out, keys, lambda number: len(pairs[keys[number]]), lambda number: pairs[keys[number]])
    return file


def make_pairs(numbers: random.Random, number: int, key_bytes: int, value_bytes: int) -> dict[bytes, bytes]:
    """Return random pairs."""
    sizes = [(numbers.randint(1, key_bytes), numbers.randint(0, value_bytes)) for _ in range(number)]
    return {numbers.randbytes(key): numbers.randbytes(value) for key, value in sizes}


def test_what_the_library_wrote(written: Path) -> None:
    """Of the newest commit, in the only table, with values inside of leaves and in pages of their own."""
    expected = {b"k%03d" % number: b"%d " % number * (60 * number) for number in range(30) if number != 3}
    assert read(written) == sorted(expected.items()) == read(written, "images")
    with pytest.raises(NoTable, match="no table 'labels'; it has images"):
        read(written, "labels")


@pytest.mark.parametrize("number", [0, 1, 2, 7, 400])
@pytest.mark.parametrize("key_bytes", [4, 511])
@pytest.mark.parametrize("value_bytes", [3, 2100, 9000])
def test_what_is_written_is_read(tmp_path: Path, number: int, key_bytes: int, value_bytes: int) -> None:
    """In the order of the keys."""
    pairs = make_pairs(random.Random(number + key_bytes + value_bytes), number, key_bytes, value_bytes)
    assert read(write(tmp_path / "a.lmdb", pairs)) == sorted(pairs.items())


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1, 2, 7, 400])
@pytest.mark.parametrize("key_bytes", [4, 511])
@pytest.mark.parametrize("value_bytes", [3, 2100, 9000])
def test_what_is_written_is_read_by_the_library(tmp_path: Path, number: int, key_bytes: int, value_bytes: int) -> None:
    """Which also writes to it, and that is read."""
    import lmdb

    pairs = make_pairs(random.Random(number + key_bytes + value_bytes), number, key_bytes, value_bytes)
    file = write(tmp_path / "a.lmdb", pairs)
    with lmdb.open(str(file), subdir=False, map_size=1 << 28) as library:
        with library.begin() as reading:
            assert list(reading.cursor()) == sorted(pairs.items())
        with library.begin(write=True) as writing:
            writing.put(b"zz", b"more")
    assert read(file) == sorted({**pairs, b"zz": b"more"}.items())


def test_damage_is_said_and_nothing_else(written: Path) -> None:
    """Whatever bytes there are: no other error, no end of memory, no loop."""
    numbers, content = random.Random(5), written.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(numbers.choice([1, 10, 500])):
            damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        written.write_bytes(damaged[: numbers.choice([len(damaged), numbers.randrange(len(damaged))])])
        with contextlib.suppress(NotLmdb, NoTable):
            assert len(read(written)) < 5000


def test_pages_that_lead_back(tmp_path: Path) -> None:
    """A branch whose child is itself."""
    file = write(tmp_path / "a.lmdb", make_pairs(random.Random(1), 400, 8, 100))
    content = bytearray(file.read_bytes())
    root = len(content) // 4096 - 1
    place = root * 4096 + int.from_bytes(content[root * 4096 + 16 : root * 4096 + 18], "little")
    content[place : place + 6] = root.to_bytes(6, "little")
    file.write_bytes(content)
    with pytest.raises(NotLmdb, match="lead back to one another"):
        read(file)


def test_a_commit_while_it_is_read(written: Path) -> None:
    """Its pages may be another key's from the next commit on: it is said, and no value is given."""
    handle = os.open(written, os.O_RDWR)
    pairs = LmdbReader(handle).pairs()
    next(pairs)
    newest = max((0, 4096), key=lambda offset: os.pread(handle, 8, offset + 144))
    os.pwrite(handle, (99).to_bytes(8, "little"), newest + 144)
    with pytest.raises(NotLmdb, match="written to while it was read"):
        next(pairs)
    os.close(handle)


def test_the_same_pairs_are_the_same_bytes() -> None:
    """Nothing of the time or the machine is in them."""
    first, second = io.BytesIO(), io.BytesIO()
    for out in (first, second):
        write_lmdb(out, [b"a", b"b"], lambda number: 5000, lambda number: b"x" * 5000)
    assert first.getvalue() == second.getvalue()
