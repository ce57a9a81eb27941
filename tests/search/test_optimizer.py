import numpy as np
import pytest

from kvroof.search.optimizer import MARGIN, solve
from kvroof.search.relax import CHUNKS, FREE, LIMITS, SIZES, padded, surface


def problems(count=24, seed=0):
    """Return concave objectives under smooth limits, some one-dimensional."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, SIZES), np.linspace(0, 1, CHUNKS), indexing="ij")
    tables = np.full((count, 1 + len(LIMITS), SIZES, CHUNKS), FREE)
    for table in tables:
        a, b, c, d, e = rng.uniform(0.2, 3, 5)
        table[0] = a * x - (y - rng.uniform()) ** 2 - np.log1p(np.exp(3 * (x - rng.uniform())))
        table[1] = b * x - c * y + rng.uniform(-2, 0.2)
        table[2] = d * x**2 + e * y - rng.uniform(0.3, 3)
        table[4] = 3 * x - rng.uniform(1, 3)
    axes = np.ones((count, 2))
    axes[: count // 3, 1] = 0
    return tables, axes


def test_optima_are_those_of_a_fine_grid_and_keep_the_optimality_conditions():
    tables, axes = problems()
    found = solve(padded(tables), axes)
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, 201)] * 2, indexing="ij"), axis=-1).reshape(1, -1, 2)
    for i, table in enumerate(padded(tables)):
        every = surface(table[None], grid * axes[i])[0]
        kept = every[:, 1:].max(axis=1) <= 0
        if kept.any():
            assert found.slack[i].max() <= MARGIN
            assert found.value[i] >= every[kept, 0].max() - 1e-4
            assert found.residual[i] < 1e-4
        else:
            assert found.slack[i].max() > 0
    assert (found.slack.max(axis=1) <= MARGIN).sum() > len(tables) / 2


def test_a_multiplier_is_what_a_looser_limit_gains():
    tables, axes = problems(seed=1)
    middle = solve(padded(tables), axes)
    step, checked = 1e-3, 0
    for name in range(1, 1 + len(LIMITS)):
        looser, tighter = tables.copy(), tables.copy()
        looser[:, name] -= step
        tighter[:, name] += step
        gain = solve(padded(looser), axes).value - solve(padded(tighter), axes).value
        for i in np.flatnonzero((middle.prices[:, name - 1] > 0.05) & (middle.residual < 1e-4)):
            assert gain[i] / (2 * step) == pytest.approx(middle.prices[i, name - 1], rel=0.05)
            checked += 1
    assert checked >= 8


def test_uneven_limits_that_meet_still_keep_the_optimality_conditions():
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(0, 1, SIZES), np.linspace(0, 1, CHUNKS), indexing="ij")
    tables = np.full((40, 1 + len(LIMITS), SIZES, CHUNKS), FREE)
    for table, (a, b) in zip(tables, rng.uniform(0.2, 0.8, (len(tables), 2)), strict=True):
        width, rise, fall = rng.uniform(0.3, 7), rng.uniform(0.005, 0.1), rng.uniform(0.3, 3)
        table[0] = width * (x - a)
        table[2] = 0.8 * width * (x - a) + rise * (y - b) + rng.normal(0, 1e-3, x.shape)
        table[3] = width * (x - a) - fall * (y - b)
    found = solve(padded(tables), np.ones((len(tables), 2)))
    assert found.slack.max() <= MARGIN
    assert found.residual.max() < 1e-5


def test_an_axis_without_extent_stays_where_it_is():
    tables, _ = problems(6)
    assert not solve(padded(tables), np.tile([1.0, 0.0], (6, 1))).unit[:, 1].any()
