"""Results of portions are put together by one at a time."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.pipeline.gathering import Gathered, find_growth, join
from headrace.sources.portions import Portion


def test_two_at_once_do_not_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, and is told that the results are there."""
    portion = tmp_path / "r-0-of-1.jsonl"
    portion.write_bytes(b'{"id":"a"}\n')
    gathered = [
        Gathered(
            portion=Portion(0, 1), results=portion, delivered={"a"}, rejected=0, given_up=0, left=0, is_again=False
        )
    ]
    inside, go_on, copies, refused = threading.Event(), threading.Event(), [], []
    copy = shutil.copyfileobj

    def slow(*arguments: Any) -> None:
        copies.append(arguments)
        inside.set()
        assert go_on.wait(60)
        copy(*arguments)

    monkeypatch.setattr(shutil, "copyfileobj", slow)
    first = threading.Thread(target=join, args=(gathered, tmp_path / "r.jsonl"))
    first.start()
    assert inside.wait(60)

    def again() -> None:
        with pytest.raises(SettingsError, match="is there already"):
            join(gathered, tmp_path / "r.jsonl")
        refused.append(True)

    second = threading.Thread(target=again)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    first.join(60)
    second.join(60)
    assert (len(copies), refused) == (1, [True])
    assert (tmp_path / "r.jsonl").read_bytes() == b'{"id":"a"}\n'
    assert not (tmp_path / "r.jsonl.new").exists()


def test_every_portion_that_began_before_is_named() -> None:
    """An item that came later may belong to any of them."""
    gathered = [
        Gathered(
            portion=Portion(index, 4), results=Path("r"), delivered=set(), rejected=0, given_up=0, left=0, listed=listed
        )
        for index, listed in enumerate([5, 5, 7, 6])
    ]
    assert "--resume --shard 0/4, 1/4, 3/4 each do what is new there" in find_growth(gathered)
