"""Counter-based random numbers: uniform, independent, the same on every array library and in compiled code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from srns import rng
from srns.kernels import random as kernel
from srns.kernels.compiler import compiled

seeds = st.integers(0, 2**63 - 1)


@compiled()
def compiled_bits(a, b, x, y, draws, out):  # type: ignore[no-untyped-def]
    for row in range(len(x)):
        first, second = kernel.row_keys(a, b, x[row], y[row])
        for draw in range(draws):
            out[row, draw] = kernel.bits(first, second, draw)


@compiled()
def compiled_below(drawn, n, out):  # type: ignore[no-untyped-def]
    for row in range(len(drawn)):
        out[row] = kernel.below(drawn[row], n)


def test_mix_is_a_bijection_on_16_bit_slices_and_avalanches() -> None:
    values = np.arange(2**20, dtype=np.int64)
    assert len(np.unique(rng.mix(values))) == len(values)
    flips = []
    for bit in range(32):
        changed = rng.mix(values) ^ rng.mix(values ^ (1 << bit))
        flips.append([np.mean((changed >> out) & 1) for out in range(32)])
    assert np.abs(np.asarray(flips) - 0.5).max() < 0.02


@given(seed=seeds, epoch=st.integers(0, 10_000), n=st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_compiled_twin_gives_the_same_bits(seed: int, epoch: int, n: int) -> None:
    key = rng.stream_key(seed, "test", epoch)
    source = np.random.default_rng(seed)
    x, y = source.integers(0, 2**31, n), source.integers(0, 2**31, n)
    out = np.zeros((n, 7), np.int64)
    compiled_bits(np.uint32(key.a), np.uint32(key.b), x, y, 7, out)
    expected = rng.bits(tuple(part[:, None] for part in rng.row_keys(key, x, y)), np.arange(7))
    np.testing.assert_array_equal(out, expected)
    drawn = expected[:, 0].astype(np.uint32)
    low = np.zeros(n, np.int64)
    compiled_below(drawn, 1 + epoch, low)
    np.testing.assert_array_equal(low, [int(value) * (1 + epoch) // 2**32 for value in drawn])


@given(seed=seeds, n=st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_permutation_is_one_and_equals_its_twin(seed: int, n: int) -> None:
    key = rng.stream_key(seed, "shuffle", 0)
    order = rng.permutation(key, n, np.arange(n))
    assert sorted(order) == list(range(n))
    start = n // 3
    out = np.zeros(n - start, np.uint32)
    kernel.permuted(start, n, *rng.feistel(key, n), out)
    np.testing.assert_array_equal(out, order[start:])
    part = np.random.default_rng(seed).integers(0, n, 5)
    np.testing.assert_array_equal(rng.permutation(key, n, part), order[part])


def test_permutations_of_five_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(120 * 60):
        order = tuple(rng.permutation(rng.stream_key(1, "shuffle", epoch), 5, np.arange(5)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 120
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize("n", [12, 50, 1000])
def test_every_place_and_every_pair_of_neighbours_is_equally_likely(n: int) -> None:
    places, neighbours = np.zeros((12, 12)), np.zeros((12, 12))
    bins = np.arange(n) * 12 // n
    epochs = 3000 if n < 1000 else 300
    for epoch in range(epochs):
        order = rng.permutation(rng.stream_key(2, "shuffle", epoch), n, np.arange(n))
        np.add.at(places, (bins, bins[order]), 1)
        np.add.at(neighbours, (bins[order[:-1]], bins[order[1:]]), 1)
    share = np.bincount(bins) / n
    assert stats.chisquare(places.ravel(), np.outer(share, share).ravel() * places.sum()).pvalue > 1e-4
    apart = np.outer(share, share) * n * n - np.diag(share * n)  # ordered pairs of two different items
    possible = apart > 0
    assert not neighbours[~possible].any()
    assert stats.chisquare(neighbours[possible], apart[possible] / apart.sum() * neighbours.sum()).pvalue > 1e-4


@pytest.mark.parametrize("stream", ["uniform", "init-users"])
def test_draws_are_uniform_and_uncorrelated(stream: str) -> None:
    key = rng.stream_key(7, stream, 3)
    rows = rng.row_keys(key, np.arange(2000)[:, None], np.zeros(1, np.int64))
    drawn = rng.open_uniform(rng.bits(rows, np.arange(200)))  # (2000, 200)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel()[:200_000], "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.01  # draws of a row
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.01  # rows
    pairs = np.histogram2d(drawn[:, 0], drawn[:, 1], bins=8)[0].ravel()
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_keys_tell_seeds_streams_epochs_and_rows_apart() -> None:
    keys = {rng.stream_key(s, name, e) for s in (0, 1, 2**32, 2**40) for name in ("a", "b", "ab") for e in range(50)}
    assert len(keys) == 4 * 3 * 50
    x, y = np.meshgrid(np.arange(500), np.arange(500))
    first, second = rng.row_keys(rng.stream_key(0, "a"), x.ravel(), y.ravel())
    assert len(np.unique(first.astype(np.int64) << 32 | second)) == x.size


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
def test_other_array_libraries_draw_the_same_bits(library: str) -> None:
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    key = rng.stream_key(5, "uniform", 2)
    x, y = np.arange(1000), np.arange(1000)[::-1].copy()
    expected = rng.bits(rng.row_keys(key, x, y), 3)
    drawn = rng.bits(rng.row_keys(key, xp.asarray(x), xp.asarray(y)), 3)
    np.testing.assert_array_equal(np.asarray(drawn), expected)
