import numpy as np
import pytest

from kvroof.search.candidates import Candidate, surfaces
from kvroof.search.relax import CHUNKS, SIZES, Box, bent_surface, padded, surface

STEP = 1e-5


def random_tables(problems, functions, scale=5.0, seed=0):
    rng = np.random.default_rng(seed)
    return padded(rng.normal(0, scale, (problems, functions, SIZES, CHUNKS)).cumsum(axis=2))


def test_a_surface_passes_through_its_nodes():
    tables = random_tables(3, 4)
    x, y = np.meshgrid(np.linspace(0, 1, SIZES), np.linspace(0, 1, CHUNKS), indexing="ij")
    nodes = np.broadcast_to(np.stack([x.ravel(), y.ravel()], axis=-1), (3, SIZES * CHUNKS, 2))
    inside = tables[:, :, 1:-1, 1:-1].reshape(3, 4, -1)
    assert np.allclose(surface(tables, nodes), inside.swapaxes(1, 2), rtol=0, atol=1e-9)


def test_what_is_linear_comes_back_as_it_is():
    x, y = np.meshgrid(np.linspace(0, 1, SIZES), np.linspace(0, 1, CHUNKS), indexing="ij")
    units = np.random.default_rng(1).uniform(0, 1, (1, 500, 2))
    found, slope, bend = bent_surface(padded((3 * x - 2 * y + 1)[None, None]), units)
    assert np.allclose(found[..., 0], 3 * units[..., 0] - 2 * units[..., 1] + 1)
    assert np.allclose(slope, [3, -2])
    assert np.allclose(bend, 0, atol=1e-6)


def test_slopes_and_second_slopes_are_the_differences_of_what_they_are_slopes_of():
    tables, rng = random_tables(2, 3), np.random.default_rng(2)
    places = np.stack([rng.integers(0, SIZES - 1, 300), rng.integers(0, CHUNKS - 1, 300)], axis=-1)
    units = (places + rng.uniform(0.1, 0.9, (300, 2))) / [SIZES - 1, CHUNKS - 1]
    units = np.broadcast_to(units, (2, 300, 2))
    found, slope, bend = bent_surface(tables, units)
    assert np.allclose(found, surface(tables, units), rtol=1e-12)
    for axis in (0, 1):
        step = np.zeros(2)
        step[axis] = STEP
        rise = (surface(tables, units + step) - surface(tables, units - step)) / (2 * STEP)
        assert np.abs(rise - slope[..., axis]).max() <= 1e-6 * np.abs(slope[..., axis]).max()
        bent = (bent_surface(tables, units + step)[1] - bent_surface(tables, units - step)[1]) / (2 * STEP)
        assert np.abs(bent - bend[..., axis, :]).max() <= 1e-6 * np.abs(bend).max()


def test_the_relaxed_objective_and_its_slopes_are_finite_everywhere(choose, ask):
    candidates = [Candidate(plan, ask()) for plan in choose(most_devices=2)]
    candidates += [candidate.in_chunks() for candidate in candidates]
    tables = np.stack(surfaces(candidates, [candidate.box() for candidate in candidates]))
    units = np.random.default_rng(3).uniform(0, 1, (len(tables), 10_000 // len(tables) + 1, 2))
    units[:, :4] = [[0, 0], [0, 1], [1, 0], [1, 1]]
    for part in bent_surface(tables, units):
        assert np.isfinite(part).all()


def test_a_smaller_box_lies_within_the_larger_one_around_the_point():
    whole = Box(low=(0.0, 1.0), high=(8.0, 5.0))
    for unit in ((0.0, 1.0), (0.5, 0.5), (0.99, 0.01)):
        part = whole.around(unit, (0.125, 0.25))
        assert part.widths == pytest.approx((1.0, 1.0))
        for axis in (0, 1):
            place = whole.low[axis] + unit[axis] * whole.widths[axis]
            assert whole.low[axis] <= part.low[axis] <= place + 1e-12
            assert place - 1e-12 <= part.high[axis] <= whole.high[axis] + 1e-12
