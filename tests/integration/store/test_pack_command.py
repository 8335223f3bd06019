"""`headrace pack`, as it is typed."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.cli import main
from headrace.runs.held_folder import HeldFolder
from headrace.samples.generator import make
from headrace.store.shard_reader import ShardReader
from headrace.store.shards import list_shard


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of real photographs."""
    folder = tmp_path / "photos"
    make(folder, count=12, seed=4)
    for other in folder.iterdir():
        if other.suffix != ".jpg":
            other.unlink()
    return folder


@pytest.mark.smoke
def test_a_packed_folder_is_read_like_the_folder_that_was_packed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same ids, the same pixels; the command says how to go on."""
    data = tmp_path / "data"
    assert main(["-q", "pack", str(photos), "-o", str(data)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"packed {len(list(photos.iterdir()))} files (")
    assert f"--source {data}" in said
    answers = []
    for source in (hr.folder(photos), hr.shards(data)):
        kept = hr.collect()
        stages = [
            hr.fetch("fetch"),
            hr.decode("decode", hr.ImageInput()),
            hr.stage("sum", lambda image: int(image.sum())),
        ]
        hr.run(hr.Pipeline(source, stages=stages, delivery=kept))
        answers.append(sorted(kept.results))
    assert answers[0] == answers[1]
    assert main(["pack", str(data), "--verify"]) == 0
    assert capsys.readouterr().out.endswith("as packed\n")
    next(data.glob("*.tar")).write_bytes(b"x")
    assert main(["pack", str(data), "--verify"]) == 1


def test_what_was_packed_is_not_overwritten(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only with --force, which leaves other files alone by refusing."""
    data = tmp_path / "data"
    assert main(["-q", "pack", str(photos), "-o", str(data)]) == 0
    assert main(["-q", "pack", str(photos), "-o", str(data)]) == 2
    assert "go on with --resume, begin anew with --force" in capsys.readouterr().err
    assert main(["-q", "pack", str(photos), "-o", str(data), "--force"]) == 0
    assert main(["-q", "pack", str(photos), "-o", str(data), "--resume"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").touch()
    assert main(["-q", "pack", str(photos), "-o", str(tmp_path / "mine"), "--force"]) == 2
    assert (tmp_path / "mine" / "diary.txt").exists()
    assert main(["-q", "pack", str(photos), "-o", str(photos / "inside")]) == 2
    assert main(["-q", "pack", str(photos)]) == 2
    assert main(["-q", "pack", "sqlite:///jobs.db", "-o", str(data)]) == 2


def test_shards_of_others_are_packed_again_and_indexed(photos: Path, tmp_path: Path) -> None:
    """What cannot be read of them is listed, and the rest is packed; --index refuses to hide it."""
    shard = tmp_path / "theirs.tar"
    with tarfile.open(shard, "w") as tar:
        tar.add(photos, "photos")
    assert main(["-q", "pack", str(shard), "--index"]) == 0
    assert (tmp_path / "theirs.idx.parquet").exists()
    (tmp_path / "theirs.idx.parquet").unlink()
    os.truncate(shard, shard.stat().st_size // 2)
    assert main(["-q", "pack", str(shard), "--index"]) == 3
    data = tmp_path / "data"
    assert main(["-q", "pack", str(shard), "-o", str(data)]) == 0
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["unreadable"] == 1
    assert "tar.truncated" in (data / "unreadable.jsonl").read_text()
    assert 0 < manifest["files"] < 12


def test_json_is_the_manifest(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same document, in the file and on stdout."""
    data = tmp_path / "data"
    assert main(["-q", "pack", str(photos), "-o", str(data), "--format", "parquet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((data / "manifest.json").read_text())


def test_nothing_that_can_be_read_is_exit_status_1(tmp_path: Path) -> None:
    """A folder of which every file is a device."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a.jpg").symlink_to("/dev/zero")
    assert main(["-q", "pack", str(tmp_path / "odd"), "-o", str(tmp_path / "data")]) == 1
    assert "file.special" in (tmp_path / "data" / "unreadable.jsonl").read_text()


def test_force_leaves_a_folder_alone_that_is_packed_into_now(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process would find its files gone at its next shard."""
    data = tmp_path / "data"
    assert main(["-q", "pack", str(photos), "-o", str(data)]) == 0
    before = sorted(data.iterdir())
    held = HeldFolder(data)
    assert main(["-q", "pack", str(photos), "-o", str(data), "--force"]) == 2
    assert "end that one first" in capsys.readouterr().err
    assert sorted(data.iterdir()) == before
    held.close()
    assert main(["-q", "pack", str(photos), "-o", str(data), "--force"]) == 0


def test_ctrl_c_keeps_what_was_packed(tmp_path: Path) -> None:
    """Exit status 130, and the command that goes on; the bytes come out as if nothing had happened."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(3_000):
        (files / f"{number:04d}.bin").write_bytes(bytes([number % 251]) * 20_000)
    command = [sys.executable, "-m", "headrace", "pack", str(files), "-o", str(tmp_path / "data"), "--shard", "5MB"]
    process = subprocess.Popen(
        [*command, "--set", "source.max_in_flight=16"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "data" / "shard-000001.tar").exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out.startswith("not complete: ")
    assert out.rstrip().endswith("--resume")
    assert subprocess.run([*command, "--resume"], capture_output=True, check=False).returncode == 0
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["files"] == 3_000


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    """A limit on the size of files stands for a disk that is full; with more room the run goes on by itself or is resumed."""
    files = tmp_path / "files"
    files.mkdir()
    for number in range(40):
        (files / f"{number:02d}.bin").write_bytes(os.urandom(20_000))
    command = [sys.executable, "-m", "headrace", "pack", str(files), "-o", str(tmp_path / "data")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY)),
    )  # fmt: skip
    said = ""
    while "cannot be written" not in said:
        line = process.stderr.readline()  # type: ignore[union-attr]
        assert line, said
        said += line
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    process.communicate(timeout=120)
    subprocess.run([*command, "--resume"], capture_output=True, check=True)
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert (manifest["files"], manifest["complete"]) == (40, True)
    assert main(["-q", "pack", str(tmp_path / "data"), "--verify"]) == 0


def test_rows_of_files_are_packed(tmp_path: Path) -> None:
    """Each is a sample with its label beside it; what cannot be read is listed; the same bytes each time."""
    images = [b"\xff\xd8\xff%d" % number for number in range(20)]
    images[7] = None  # type: ignore[call-overload]
    table = pa.table({"image": images, "label": [f"cat {number}" for number in range(20)]})
    pa.parquet.write_table(table, tmp_path / "train.parquet")
    data = tmp_path / "data"
    assert main(["-q", "pack", f"records://{tmp_path}/train.parquet?column=image", "-o", str(data)]) == 0
    found = list_shard(data / "shard-000000.tar")
    assert [one.key for one in found.samples] == [f"train_{number}" for number in range(20) if number != 7]
    assert [found.samples[3].parts[part].name for part in ("jpg", "json")] == ["train_3.jpg", "train_3.json"]
    assert found.samples[3].parts["json"].text == '{"label":"cat 3"}'
    assert ShardReader(data).read(0) == images[0]
    assert "records.empty" in (data / "unreadable.jsonl").read_text()
    right = {file.name: file.read_bytes() for file in data.iterdir()}

    again = tmp_path / "again"
    assert main(["-q", "pack", f"{tmp_path}/train.parquet", "-o", str(again)]) == 0
    assert {file.name: file.read_bytes() for file in again.iterdir()} == right


def test_numbers_of_rows_are_packed_as_files_of_numpy(tmp_path: Path) -> None:
    """As nothing else says what they are."""
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    pa.parquet.write_table(pa.table({"data": list(rows)}), tmp_path / "a.b.parquet")
    assert main(["-q", "pack", str(tmp_path / "a.b.parquet"), "-o", str(tmp_path / "data")]) == 0
    reader = ShardReader(tmp_path / "data")
    assert [reader.key(number) for number in range(4)] == ["a_0", "a_1", "a_2", "a_3"]
    assert np.load(io.BytesIO(reader.read(2)), allow_pickle=False).tolist() == rows[2].tolist()


def test_images_are_packed_smaller(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With names that say so, the same bytes whatever the number of workers; what is resumed otherwise is refused."""
    (photos / "notes.txt").write_text("of these photographs")
    digests = []
    for workers in (1, 3):
        data = tmp_path / f"data{workers}"
        more = ["--short-side", "64", "--encode", "webp", "--set", f"encode.workers={workers}"]
        assert main(["-q", "pack", str(photos), "-o", str(data), "--json", *more]) == 0
        manifest = json.loads(capsys.readouterr().out)
        assert manifest["encoding"] == {"format": "webp", "short_side": 64, "quality": None}
        digests.append([one["sha256"] for one in manifest["shards"]])
    assert digests[0] == digests[1]
    with tarfile.open(next(data.glob("*.tar"))) as tar:
        ends = {name.rpartition(".")[2] for name in tar.getnames()}
    assert ends == {"webp", "txt"}
    images: list[tuple[int, ...]] = []
    stages = [
        hr.fetch("fetch"),
        hr.decode("decode", hr.ImageInput()),
        hr.stage("note", lambda image: images.append(image.shape)),
    ]
    hr.run(hr.Pipeline(hr.shards(data), stages=stages, delivery=hr.collect()))
    assert {min(shape[:2]) for shape in images} == {64}
    for given in ([], ["--short-side", "65", "--encode", "webp"]):
        assert main(["-q", "pack", str(photos), "-o", str(data), "--resume", *given]) == 2
        assert "was packed with --encode webp --short-side 64" in capsys.readouterr().err
    assert main(["-q", "pack", str(photos), "-o", str(tmp_path / "plain")]) == 0
    assert main(["-q", "pack", str(photos), "-o", str(tmp_path / "plain"), "--resume", "--quality", "9"]) == 2
    assert "without changing images" in capsys.readouterr().err


def test_a_photograph_and_its_mask_are_not_made_smaller(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sample: only one of them might be."""
    shard = tmp_path / "sample.tar"
    with tarfile.open(shard, "w") as tar:
        for name in ("1.jpg", "1.seg.png"):
            tar.add(next(photos.glob("*.jpg")), name)
    assert main(["-q", "pack", str(shard), "-o", str(tmp_path / "data"), "--short-side", "64"]) == 2
    assert "no longer fits its mask" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_trying_says_what_smaller_images_save(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes, decoding and pixels, before anything is packed."""
    command = ["-q", "pack", str(photos), "--try", "8", "--short-side", "64", "-o", str(tmp_path / "data")]
    assert main([*command, "--json"]) == 0
    smaller = json.loads(capsys.readouterr().out)["smaller"]
    assert smaller["images"] == 8
    assert smaller["mean_bytes_after"] < smaller["mean_bytes_before"]
    assert 0 < smaller["mean_difference"] <= smaller["largest_difference"] < 60
    assert main(command) == 0
    assert "8 images with --short-side 64:" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["-q", "pack", str(photos), "--quality", "101"])


_APPS = """
import headrace as hr

class Sides(hr.Module):
    input = hr.ImageInput(short_side=64)
    def process(self, batch):
        return [list(image.shape) for image in batch]

class Grain(Sides):
    def process(self, batch):
        return [int(image.astype(int).sum()) for image in batch]

class Large(hr.Module):
    input = hr.BytesInput()
    def preprocess(self, data):
        if len(data) < 10_000:
            raise hr.ItemRejected("small: none of ours")
        return data
    def process(self, batch):
        return [None for data in batch]

sides, grain, large = (hr.Pipeline(hr.items([]), module=one(), delivery=hr.collect()) for one in (Sides, Grain, Large))
"""


def test_trying_asks_a_pipeline_before_and_after(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that looks at sizes answers alike, one that adds up pixels does not; a bound on that is an exit status."""
    (tmp_path / "apps.py").write_text(_APPS)
    command = [
        "-q",
        "pack",
        str(photos),
        "--try",
        "4",
        "--short-side",
        "64",
        "--quality",
        "20",
        "-o",
        str(tmp_path / "data"),
    ]
    command += ["--max-change", "10pt", "--pipeline"]
    assert main([*command, f"{tmp_path}/apps.py:sides"]) == 0
    assert "answers 4 of 4 stay the same (100.0%)" in capsys.readouterr().out
    assert main([*command, f"{tmp_path}/apps.py:grain", "--json"]) == 1
    said = capsys.readouterr()
    answers = json.loads(said.out)["smaller"]["answers"]
    assert (answers["same"], answers["looked_at"], len(answers["changed"])) == (0, 4, 4)
    assert "--max-change 10.00% allows" in said.err
    assert main([*command, f"{tmp_path}/apps.py:large"]) == 1, (
        "what is rejected afterwards has another answer than None"
    )
    assert main(["-q", "pack", str(photos), "-o", str(tmp_path / "data"), "--pipeline", "apps.py:sides"]) == 2
    assert main(["-q", "pack", str(photos), "--try", "4", "--max-change", "1pt"]) == 2


def test_nothing_to_pack_is_said(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a table has no rows, and where tar shards are taken for one."""
    pyarrow.parquet.write_table(pa.table({"data": pa.array([], pa.binary())}), tmp_path / "none.parquet")
    assert main(["-q", "pack", f"records://{tmp_path}/none.parquet", "-o", str(tmp_path / "data")]) != 0
    assert "there is nothing to pack" in capsys.readouterr().err
    shards = tmp_path / "shards"
    assert main(["-q", "pack", str(photos), "-o", str(shards)]) == 0
    assert main(["-q", "pack", f"records://{shards}", "-o", str(tmp_path / "data")]) != 0
    assert "has no file with rows: shard-000000.idx.parquet tell of tar shards" in capsys.readouterr().err


def test_a_table_that_is_packed_as_a_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody reads its rows out of a shard; the command that packs rows works."""
    tables = tmp_path / "tables"
    tables.mkdir()
    pyarrow.parquet.write_table(pa.table({"image": [b"a", b"b"]}), tables / "train.parquet")
    assert main(["pack", str(tables), "-o", str(tmp_path / "files")]) == 0
    command = f"headrace pack records://{tables} -o {tmp_path / 'files'}"
    assert (
        f"train.parquet holds rows, and is packed as one item; to pack its rows: {command}" in capsys.readouterr().err
    )
    assert main(["pack", f"records://{tables}", "-o", str(tmp_path / "rows")]) == 0
    assert "holds rows" not in capsys.readouterr().err
    assert len(ShardReader(tmp_path / "rows")) == 2


def test_what_is_named_an_image_and_is_none_is_not_packed_smaller(photos: Path, tmp_path: Path) -> None:
    """An empty file or an error page would be called `jpg` in the shard; other files are packed as they are."""
    for name, content in {"empty.jpg": b"", "page.png": b"<html>", "a.txt": b"text", "b": b"x"}.items():
        (photos / name).write_bytes(content)
    data = tmp_path / "data"
    assert main(["-q", "pack", str(photos), "-o", str(data), "--encode", "jpeg"]) == 0
    refused = [json.loads(line) for line in (data / "unreadable.jsonl").read_text().splitlines()]
    assert {one["id"]: one["reason"].split(": ")[2] for one in refused} == {
        "empty.jpg": "decode.empty", "page.png": "decode.format",
    }  # fmt: skip
    reader = ShardReader(data)
    kept = {reader.key(number): reader.read(number) for number in range(len(reader))}
    assert (kept["a"], kept["b"]) == (b"text", b"x")
