"""Percentiles against numpy, and against what too few samples can say."""

from __future__ import annotations

import numpy as np
import pytest

from mlt.perf.statistics import QUANTILES, cumulative, name_of, needed, significant, summarise


@pytest.mark.parametrize("count", [1_000, 4_321])
def test_summarise__agrees_with_numpy(count: int) -> None:
    samples = np.random.default_rng(count).exponential(size=count)
    summary = summarise(samples.tolist())
    assert summary.count == count
    assert summary.mean == pytest.approx(samples.mean())
    for quantile in QUANTILES:
        assert summary.quantiles[quantile] == pytest.approx(np.percentile(samples, 100 * quantile))


@pytest.mark.parametrize(("quantile", "minimum"), [(0.5, 1), (0.9, 10), (0.99, 100), (0.999, 1_000)])
def test_summarise__needs_a_sample_beyond_the_quantile(quantile: float, minimum: int) -> None:
    assert needed(quantile) == minimum
    assert summarise([1.0] * minimum).quantiles[quantile] == 1.0
    if minimum > 1:
        summary = summarise([1.0] * (minimum - 1))
        assert summary.quantiles[quantile] is None
        assert summary.text(quantile) == "-"


def test_summarise__rejects_an_empty_list() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_name_of__is_how_people_write_it() -> None:
    assert [name_of(q) for q in QUANTILES] == ["p50", "p90", "p99", "p99.9"]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.012345, "0.0123"), (0, "0"), (999.9, "1,000")]
)
def test_significant__keeps_three_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_cumulative__rises_to_one() -> None:
    samples, fractions = cumulative([3.0, 1.0, 2.0, 2.0])
    assert samples == [1.0, 2.0, 2.0, 3.0]
    assert fractions == [0.25, 0.5, 0.75, 1.0]
