from pathlib import Path

import pytest

from headrace.profiler.layers.operations import Work
from headrace.profiler.layers.roofline import _last_level_cache_bytes, bandwidth_at, judge, measure_ceilings
from headrace.runs.formats.layers import Bandwidth, Ceilings

CEILINGS = Ceilings(flops_per_second=100e9, bytes_per_second=10e9, threads=1, method="given")
CACHED = Ceilings(
    flops_per_second=100e9,
    bytes_per_second=10e9,
    threads=1,
    method="given",
    bandwidths=(
        Bandwidth(working_set_bytes=1e4, bytes_per_second=1000e9),
        Bandwidth(working_set_bytes=1e6, bytes_per_second=100e9),
        Bandwidth(working_set_bytes=1e8, bytes_per_second=10e9),
    ),
)


@pytest.mark.parametrize(
    ("flops", "num_bytes", "seconds", "bound", "of_ceiling"),
    [
        (50e9, 1e9, 1.0, "compute", 0.5),  # 50 operations a byte, the ridge is at 10
        (5e9, 5e9, 1.0, "memory", 0.5),
        (0.0, 8e9, 1.0, "memory", 0.8),
        (5e9, 0.5e9, 1.0, "overhead", 0.05),  # a twentieth of both
        (0.0, 0.0, 1.0, "overhead", 0.0),
    ],
)
def test_what_limits_a_layer(flops: float, num_bytes: float, seconds: float, bound: str, of_ceiling: float) -> None:
    """Known answers on a roofline with its ridge at 10 operations a byte."""
    verdict = judge(Work(flops, num_bytes), seconds, "float32", CEILINGS)
    assert verdict.bound == bound
    assert verdict.of_ceiling == pytest.approx(of_ceiling)


def test_without_counts_or_ceilings_nothing_is_known() -> None:
    """Unknown is said, not guessed."""
    for work, seconds, ceilings in (
        (Work(None, 1.0), 1.0, CEILINGS),
        (Work(1.0, None), 1.0, CEILINGS),
        (Work(1.0, 1.0), 1.0, None),
        (Work(1.0, 1.0), 0.0, CEILINGS),
    ):
        verdict = judge(work, seconds, "float32", ceilings)
        assert (verdict.bound, verdict.of_ceiling) == ("unknown", None)


def test_narrow_types_have_no_compute_ceiling() -> None:
    """An int8 product beyond float32's ceiling is not 150 % of anything; far below it, it is overhead all the same."""
    assert judge(Work(150e9, 1e6), 1.0, "uint8", CEILINGS).bound == "unknown"
    assert judge(Work(1e9, 1e6), 1.0, "uint8", CEILINGS).bound == "overhead"
    assert judge(Work(1e9, 1e6), 1.0, "float64", CEILINGS).bound == "unknown"
    assert judge(Work(1e9, 5e9), 1.0, "uint8", CEILINGS).bound == "memory"


def test_a_small_layer_is_judged_by_the_cache() -> None:
    """Bandwidth is that of the layer's size, between measured sizes by the logarithm, beyond them the nearest."""
    assert bandwidth_at(1e6, CACHED) == pytest.approx(100e9)
    assert bandwidth_at(1e7, CACHED) == pytest.approx(55e9)
    assert bandwidth_at(1e12, CACHED) == pytest.approx(10e9)
    assert bandwidth_at(0, CACHED) == bandwidth_at(5, CEILINGS) == 10e9
    assert judge(Work(0.0, 1e6), 20e-6, "float32", CACHED).of_ceiling == pytest.approx(0.5)


@pytest.mark.full
def test_ceilings_come_from_the_products_and_from_real_copies() -> None:
    """The compute ceiling is the best of the engine's products: 2 x 1024^3 operations in a second beat 2 x 512^3 in one."""

    class Profiler:
        engine = "scripted"

        def matrix_product_seconds(self, side: int, *, threads: int) -> float:
            assert threads == 2
            return 1.0

        def open(self, *_args: object, **_options: object) -> object:
            raise AssertionError

    ceilings = measure_ceilings(Profiler(), 2)  # type: ignore[arg-type]
    assert ceilings.flops_per_second == 2 * 1024**3
    assert ceilings.threads == 2
    assert ceilings.bandwidths[-1].bytes_per_second == ceilings.bytes_per_second > 1e8
    sizes = [point.working_set_bytes for point in ceilings.bandwidths]
    assert sizes == sorted(sizes)
    assert "scripted" in ceilings.method


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    """Sizes as Linux writes them; a machine that does not tell gives None."""
    assert _last_level_cache_bytes(tmp_path) is None
    for number, size in enumerate(("48K", "1024K", "32768K")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}/size").write_text(f"{size}\n")
    assert _last_level_cache_bytes(tmp_path) == 32 * 2**20
