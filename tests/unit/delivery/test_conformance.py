"""The deliveries that need no server keep every promise of a delivery."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

import headrace as hr
from headrace.base.errors import DeliveryFailed, DeliveryRejected, ResultsRefused, SettingsError
from headrace.base.records import Job
from headrace.cli.loading import parse_results
from headrace.delivery.jsonl import JsonLines
from headrace.delivery.parquet import Parquet
from headrace.testing.delivery_conformance import DeliveryConformance


class TestJsonLines(DeliveryConformance):
    """A file."""

    @pytest.fixture
    def make_delivery(self, tmp_path: Path) -> Callable[[], Any]:
        """Return a delivery to the same file."""
        self.file = tmp_path / "out.jsonl"
        return lambda: JsonLines(self.file)

    def read_results(self) -> dict[str, Any]:
        """Read the lines."""
        lines = map(msgspec.json.decode, self.file.read_bytes().splitlines())
        return {line["id"]: line["result"] for line in lines}


class TestParquet(DeliveryConformance):
    """A folder."""

    @pytest.fixture
    def make_delivery(self, tmp_path: Path) -> Callable[[], Any]:
        """Return a delivery to the same folder."""
        self.folder = tmp_path / "out"
        return lambda: Parquet(self.folder)

    def read_results(self) -> dict[str, Any]:
        """Read the folder as one table."""
        if not list(self.folder.glob("*.parquet")):
            return {}
        rows = pyarrow.parquet.read_table(self.folder).to_pylist()
        return {row.pop("id"): row for row in rows}


class TestSqlite(DeliveryConformance):
    """A table of a file."""

    @pytest.fixture
    def make_delivery(self, tmp_path: Path) -> Callable[[], Any]:
        """Return a delivery to the same table, as the command line names it."""
        pytest.importorskip("sqlalchemy")
        self.file = tmp_path / "out.db"
        return lambda: parse_results(f"sqlite:///{self.file}?table=scores")

    def read_results(self) -> dict[str, Any]:
        """Read the table with Python's own module."""
        connection = sqlite3.connect(self.file)
        rows = connection.execute("select id, result from scores").fetchall()
        connection.close()
        return {one: msgspec.json.decode(result) for one, result in rows}

    def test_a_result_replaces_that_of_its_id(self, make_delivery: Any) -> None:
        """Also within one flush: the last one stands."""
        delivery = make_delivery()
        delivery.open(None)
        for score in (1, 2):
            delivery.deliver(Job("a", b"", attributes={"label": "x"}), score)
        delivery.flush()
        assert self.read_results() == {"a": 2}
        delivery.deliver(Job("a", b""), 3)
        delivery.close()
        assert self.read_results() == {"a": 3}

    def test_a_busy_database_keeps_results(self, make_delivery: Any) -> None:
        """Who cannot write now fails, keeps all, and writes them later."""
        delivery = make_delivery()
        delivery.open(None)
        other = sqlite3.connect(self.file)
        other.execute("drop table scores")
        delivery.deliver(Job("a", b""), 1)
        with pytest.raises(DeliveryFailed, match="no such table: scores"):
            delivery.flush()
        other.close()
        delivery.open(None)
        delivery.close()
        assert self.read_results() == {"a": 1}

    def test_a_row_that_the_table_refuses_holds_up_no_other(self, make_delivery: Any) -> None:
        """It is named with the reason, also beside others and by a table that refuses the row tried first; it goes once."""
        delivery = make_delivery()
        self._make_table("check (result like '[%')")
        delivery.open(None)
        for one in "abcde":
            delivery.deliver(Job(one, b""), {} if one in "be" else [])
        with pytest.raises(ResultsRefused) as refused:
            delivery.flush()
        assert set(refused.value.reasons) == {"b", "e"}
        assert "refuses this row: CHECK constraint failed" in refused.value.reasons["b"]
        assert set(self.read_results()) == {"a", "c", "d"}
        delivery.flush()
        delivery.close()

    def test_a_column_that_nothing_fills_is_refused_before_the_first_result(self, make_delivery: Any) -> None:
        """Each row would be refused."""
        delivery = make_delivery()
        self._make_table("not null, price real not null")
        with pytest.raises(SettingsError, match="NOT NULL constraint failed"):
            delivery.open(None)

    def test_a_run_goes_on_past_a_row_that_its_table_refuses(self, make_delivery: Any) -> None:
        """That job alone is rejected, with the table's reason; before, none ended."""
        delivery = make_delivery()
        self._make_table("check (result <> '2')")
        numbers = hr.stage("number", lambda value: value, kind="cpu")
        run = hr.run(hr.Pipeline(source=hr.items([1, 2, 3]), stages=[numbers], delivery=delivery))
        assert (run.counters.delivered, run.counters.rejected) == (2, 1)
        assert self.read_results() == {"0": 1, "2": 3}

    def _make_table(self, of_result: str) -> None:
        other = sqlite3.connect(self.file)
        other.execute(
            f"create table scores (id text primary key, task text, attributes text, result text {of_result}, run text)"
        )
        other.close()

    def test_a_table_of_others_is_refused_before_the_first_result(self, make_delivery: Any) -> None:
        """It lacks the columns, and is left as it is."""
        other = sqlite3.connect(self.file)
        other.execute("create table scores (id text, price real)")
        other.close()
        with pytest.raises(SettingsError, match=r"has the columns id \(its key\), task, attributes, result and run"):
            make_delivery().open(None)

    def test_an_id_that_no_database_stores_is_rejected(self, make_delivery: Any) -> None:
        """By name, and alone."""
        with pytest.raises(DeliveryRejected, match=r"result\.id"):
            make_delivery().deliver(Job("a\0b", b""), 1)


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///a.db?table=a-b", "postgresql://", "sqlite:///a.db?table="])
def test_an_address_that_names_no_table_says_what_would(address: str) -> None:
    """Before anything is opened."""
    pytest.importorskip("sqlalchemy")
    with pytest.raises(SettingsError, match="expected"):
        parse_results(address)
