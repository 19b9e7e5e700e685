"""Eight numbers at a time against NumPy and against one at a time, bit for bit."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from numba import njit

from srns import rng
from srns.kernels import across, lanes
from srns.kernels.elementary import exp_of_lanes, gumbel_of_lanes, logistic_of_lanes
from srns.kernels.lanes import LANES, as_bits, load, store
from srns.kernels.random import draws
from srns.samplers.elementary import exp_nonpositive, gumbel, logistic

draw = np.random.default_rng(0)


def applied(function: Any, a: Any, b: Any = None) -> Any:
    """function(lanes of a, lanes of b), in the numbers of a."""
    out = np.zeros_like(a)

    @njit(error_model="numpy")
    def unary(a: Any, out: Any) -> None:
        for at in range(0, a.shape[0], LANES):
            store(out, 0, at, function(load(a, 0, at)))

    @njit(error_model="numpy")
    def binary(a: Any, b: Any, out: Any) -> None:
        for at in range(0, a.shape[0], LANES):
            store(out, 0, at, function(load(a, 0, at), load(b, 0, at)))

    if b is None:
        unary(a, out)
    else:
        binary(a, b, out)
    return out


@pytest.mark.parametrize("scale", [0.01, 1, 20, 200])
def test_exp_and_logistic_have_the_bits_of_the_array_form(scale: float) -> None:
    x = (scale * draw.normal(size=64 * LANES)).astype(np.float32)
    x[0] = 0
    np.testing.assert_array_equal(applied(logistic_of_lanes, x), logistic(x, np))
    np.testing.assert_array_equal(applied(exp_of_lanes, -abs(x)), exp_nonpositive(-abs(x), np))


def test_integers() -> None:
    a, b = (draw.integers(-(2**31), 2**31, 16 * LANES).astype(np.int32) for _ in range(2))
    high = (a.view(np.uint32).astype(np.uint64) * b.view(np.uint32).astype(np.uint64)) >> np.uint64(32)
    np.testing.assert_array_equal(applied(lanes.high_product, a, b).view(np.uint32), high)
    few, others = a % 40, b % 40
    found = (few.reshape(-1, LANES, 1) == others.reshape(-1, 1, LANES)).any(axis=2).ravel()
    np.testing.assert_array_equal(applied(across.among, few, others), -found.astype(np.int32))


def test_random_words() -> None:
    numbers, rows = np.arange(3 * LANES, dtype=np.int32), (np.int64(123456789), np.int64(4011223344))
    words = applied(njit(lambda at: draws(np.uint32(rows[0]), np.uint32(rows[1]), at)), numbers)
    np.testing.assert_array_equal(words.view(np.uint32), rng.bits(rows, numbers.astype(np.int64)))


def test_gumbel_noise_has_the_bits_of_the_array_form() -> None:
    words = np.concatenate([[0, 1, 2**32 - 1], draw.integers(0, 2**32, 1000 * LANES - 3)])
    uppers = (words >> 9).astype(np.int32)
    found = applied(njit(lambda x: as_bits(gumbel_of_lanes(x))), uppers).view(np.float32)
    np.testing.assert_array_equal(found, gumbel(words, xp))


@pytest.mark.parametrize("width", [LANES, 5 * LANES])
def test_eight_scalar_products(width: int) -> None:
    a, b = (draw.integers(-20, 20, (30, 2 * width)).astype(np.float32) for _ in range(2))
    rows, out = draw.integers(0, 30, LANES).astype(np.int32), np.zeros(LANES, np.float32)

    @njit
    def products(a: Any, b: Any, rows: Any, out: Any) -> None:
        store(out, 0, 0, across.dots(a, 7, width, b, load(rows, 0, 0), width, width))

    products(a, b, rows, out)
    np.testing.assert_array_equal(out, b[rows, width:] @ a[7, width:])
