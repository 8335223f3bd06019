"""What a program may name as a path, and what is refused in words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError
from headrace.delivery.sql import SqlTable

_LISTS: list[Callable[[Any], Any]] = [lambda path: hr.loader(path, 2), hr.shards, hr.folder, hr.records, hr.video]
_SINGLE: list[Callable[[Any], Any]] = [hr.jsonl, hr.parquet, hr.objects, SqlTable, hr.urls]


@pytest.mark.parametrize("take", [*_LISTS, *_SINGLE])
@pytest.mark.parametrize("value", [None, 5, b"a.tar", 1.5, True, object(), [None], [["a.tar"]]])
def test_what_is_no_path_is_refused_by_its_type(take: Callable[[Any], Any], value: Any) -> None:
    """No error from inside, which names no argument."""
    with pytest.raises(SettingsError, match="is not possible; allowed"):
        take(value)


@pytest.mark.parametrize("take", _LISTS)
def test_an_empty_list_is_refused(take: Callable[[Any], Any]) -> None:
    """A pattern that found nothing is no empty data set."""
    with pytest.raises(SettingsError, match="an empty list"):
        take([])


@pytest.mark.parametrize("take", [*_LISTS[1:], hr.jsonl, hr.parquet])
@pytest.mark.parametrize("address", ["s3://bucket/a.tar", Path("s3://bucket/a.tar"), "http://me:secret@host/a"])
def test_an_address_is_no_path(take: Callable[[Any], Any], address: Any) -> None:
    """Neither a folder called `s3:` is made, nor is one looked for."""
    with pytest.raises(SettingsError, match="is an address, and no path of this machine") as error:
        take(address)
    assert "secret" not in str(error.value)


def test_lists_are_read_sorted_and_once(tmp_path: Path) -> None:
    """Ids are relative to the folder that holds all."""
    for name in ("b/1.jpg", "a/1.jpg", "a/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    named = [tmp_path / "b", str(tmp_path / "a"), tmp_path / "b/1.jpg"]
    assert [entry.id for entry in hr.folder(named).entries()] == ["a/1.jpg", "a/2.jpg", "b/1.jpg"]
    assert [entry.id for entry in hr.folder(iter(named[:1])).entries()] == ["1.jpg"]


@pytest.mark.parametrize("take", [*_LISTS[1:-1], pytest.param(hr.video, marks=pytest.mark.full)])
def test_a_path_that_the_system_refuses_is_a_source_error(take: Callable[[Any], Any]) -> None:
    """With the system's reason."""
    with pytest.raises(SourceError, match="File name too long"):
        list(take("x" * 300).entries())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path) -> None:
    """It is not said to be missing."""
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(SourceError, match="Permission denied"):
        list(hr.shards(tmp_path / "closed/a.tar").entries())


def test_addresses_of_an_iterator_are_all_read() -> None:
    """Looking at the first must not take it away."""
    source = hr.urls(f"https://example.com/{number}.jpg" for number in range(3))
    assert not source.gives_files
    assert len(list(source.entries())) == 3
    assert len(list(source.entries())) == 3


@pytest.mark.parametrize(
    "address", [Path("s3://bucket/a.tar"), "http://me:secret@host/a", ["s3://bucket/a.tar", "b.tar"]]
)
def test_a_loader_takes_addresses_of_buckets_alone(address: Any) -> None:
    """As text; among paths they are refused."""
    with pytest.raises(SettingsError, match=r"is an address, and no path of this machine.*name s3://") as error:
        hr.loader(address, 2)
    assert "secret" not in str(error.value)
