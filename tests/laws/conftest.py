"""64-bit floats for the laws that relax integers; put back afterwards, so no other module sees them."""

import pytest


@pytest.fixture(scope="module")
def x64():
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
