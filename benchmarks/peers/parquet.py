"""The folder peers' output."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[str, int, float]


def write(rows: Iterable[Row], output: str) -> None:
    """Write path, label and score as one Parquet file."""
    paths, labels, scores = zip(*rows, strict=True)
    pq.write_table(pa.table({"path": paths, "label": labels, "score": scores}), output)


def read_labels(output: str) -> list[tuple[str, int]]:
    """Return path and label of every row of a Parquet file or folder."""
    table = pq.read_table(output)
    names = table["path" if "path" in table.column_names else "id"]  # headrace's rows carry the job's id
    return list(zip(names.to_pylist(), table["label"].to_pylist(), strict=True))
