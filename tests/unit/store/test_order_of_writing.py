"""Names of members, samples, and whose turn it is: the plain objects behind a packed folder."""

from __future__ import annotations

import random

import pytest

from headrace.store.naming import keep_names, name_members
from headrace.store.samples import Stored, join_samples, split_name
from headrace.store.turns import Turns


def names(*ids: str) -> list[str]:
    """Return the names of items, a sample's first one marked."""
    return [f"{'*' if one.begins_sample else ''}{one.name}" for one in name_members(ids)]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["a.jpg", "b.jpg"], ["*a.jpg", "*b.jpg"]),
        (["a.cls", "a.jpg", "a.json"], ["*a.cls", "a.jpg", "a.json"]),
        (["a.jpg", "a.png"], ["*a.jpg", "*a~2.png"]),
        (["a.jpg", "x/a.jpg"], ["*a.jpg", "*x/a.jpg"]),
        (["IMG.1.jpg", "IMG.2.jpg"], ["*IMG_1.jpg", "*IMG_2.jpg"]),
        (["a.b.jpg", "a_b.jpg"], ["*a_b.jpg", "*a_b~2.jpg"]),
        (["a.JPG"], ["*a.jpg"]),
        (["https://host/x/a.jpg~1f2e3d4c"], ["*host/x/a~1f2e3d4c.jpg"]),
        (["../../etc/passwd", "/abs.jpg"], ["*etc/passwd.bin", "*abs.jpg"]),
        ([".jpg"], ["*jpg.bin"]),
        (["a b\n<c>.jpg"], ["*a b_c_.jpg"]),
        (["notes.txt", "readme"], ["*notes.txt", "*readme.bin"]),
    ],
)
def test_names_are_safe_and_say_what_belongs_together(ids: list[str], expected: list[str]) -> None:
    """Each image is a sample; texts with its stem join it; nothing leads out of the archive."""
    assert names(*ids) == expected


def test_names_are_given_once_each() -> None:
    """However strange the ids are, no two members have one name, and the samples that are read are those that were meant."""
    draw = random.Random(5)
    ids = sorted(
        {
            "".join(draw.choices("aA./~_1é", k=draw.randint(1, 8))) + draw.choice(["", ".jpg", ".cls"])
            for _ in range(3_000)
        }
    )
    named = name_members(ids)
    assert len({one.name for one in named}) == len(ids)
    samples = list(join_samples(Stored(one.name, 0, 0) for one in named))
    assert len(samples) == sum(one.begins_sample for one in named)


def test_names_of_shards_are_kept() -> None:
    """What is packed again keeps its samples, dots and all; a key that comes again gets a number."""
    ids = ["a.jpg", "a.seg.png", "b.jpg", "a.jpg#2", "a.cls"]
    assert [(one.name, one.begins_sample) for one in keep_names(ids)] == [
        ("a.jpg", True), ("a.seg.png", False), ("b.jpg", True), ("a~2.jpg", True), ("a~2.cls", False),
    ]  # fmt: skip


def test_samples_are_neighbours_with_one_stem() -> None:
    """As WebDataset joins them: by the first dot of the last segment."""
    files = ["a/1.jpg", "a/1.seg.png", "a/1.cls", "b/1.jpg", "2", "3.json"]
    samples = list(join_samples(Stored(name, 0, 0) for name in files))
    assert [(one.key, list(one.parts)) for one in samples] == [
        ("a/1", ["jpg", "seg.png", "cls"]), ("b/1", ["jpg"]), ("2", [""]), ("3", ["json"]),
    ]  # fmt: skip
    assert [one.choose().name for one in samples] == ["a/1.jpg", "b/1.jpg", "2", "3.json"]  # type: ignore[union-attr]
    assert samples[0].choose("seg.png").name == "a/1.seg.png"  # type: ignore[union-attr]
    assert samples[0].choose("mask") is None
    assert split_name("a.b/c.D.E") == ("a.b/c", "d.e")


@pytest.mark.parametrize("seed", range(50))
def test_every_item_has_its_turn_once_and_in_order(seed: int) -> None:
    """Whatever comes first, is held or is given up: the order of the list is the order of what is written."""
    draw = random.Random(seed)
    ids = [f"{number}" for number in range(draw.randint(1, 60))]
    lost = {one for one in ids if draw.random() < 0.2}
    turns, held, written = Turns(ids), set(), []
    for one in draw.sample(ids, len(ids)):
        if one in lost:
            turns.pass_by(one)
        else:
            turns.hold(one)
            held.add(one)
        while (due := turns.next_id) in held:
            held.discard(due)
            written.append(due)
            turns.pass_by(due)
            turns.pass_by(due)  # a second time changes nothing
    assert written == [one for one in ids if one not in lost]
    assert turns.next_id is None
    assert turns.num_past == len(ids)
    assert not any(turns.is_open(one) for one in ids)


def test_a_name_that_readers_refuse_is_shortened() -> None:
    """Addresses have any length; two that are alike behind are told apart."""
    ids = [f"https://example.com/{number}/{'segment/' * 600}a.jpg" for number in range(2)]
    names = [named.name for named in name_members(ids)]
    assert len(set(names)) == 2
    assert all(len(name) < 1_100 for name in names)


def test_what_hides_in_an_address_is_no_part_of_the_suffix() -> None:
    """Signed addresses end with a query, and what a list names twice with a number."""
    ids = ["https://h/a.jpg?...~0123abcd", "https://h/a.jpg?...~89abcdef#2", "https://h/b.jpg~0123abcd", "https://h/c"]
    assert names(*ids) == ["*h/a~0123abcd.jpg", "*h/a~89abcdef.jpg", "*h/b~0123abcd.jpg", "*h/c.bin"]
    assert names("https://h/a.jpg", "https://h/a.jpg#2") == ["*h/a.jpg", "*h/a~2.jpg"]
    assert names("f/a.jpg", "f/a.jpg#2", "f/IMG#12", "f/x.jpg~0123abcd") == [
        *("*f/a.jpg", "*f/a~2.jpg", "*f/IMG_12.bin", "*f/x_jpg~0123abcd.bin"),
    ]  # fmt: skip
