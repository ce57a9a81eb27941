"""`kvroof doctor`: versions, devices, what is missing and how to get it."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from kvroof import __version__
from kvroof.catalog.models import model_names
from kvroof.catalog.names import data_folder
from kvroof.catalog.profiles import hardware_names
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view

REQUIRED = (
    "jax", "optax", "numpy", "scipy", "plotly", "jinja2", "click", "rich", "msgspec", "safetensors", "gguf"
)  # fmt: skip
EXTRAS = {
    "flax": "engine", "jaxtyping": "engine", "kaleido": "images", "aiconfigurator-core": "silicon",
    "pyarrow": "silicon",
}  # fmt: skip
"""What some verbs need besides, and the extra that brings it."""


@click.command("doctor")
@options.json_output
def command(as_json: bool) -> None:
    """Versions, devices, the catalog, and what is missing.

    \b
    kvroof doctor
    """
    found = {
        "kvroof": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in (*REQUIRED, *EXTRAS)},
        "devices": _devices(),
        "models": len(model_names()),
        "hardware": len(hardware_names()),
        "calibrations": sorted(
            path.stem for path in (data_folder("hardware") / "calibrations").glob("*.toml")
        ),
    }
    missing = [name for name in REQUIRED if _version(name) is None]
    found["missing"] = {name: f"pip install {name}" for name in missing} | {
        name: f"pip install 'kvroof[{extra}]'" for name, extra in EXTRAS.items() if _version(name) is None
    }
    if as_json:
        print_json(found)
    else:
        from kvroof.view.catalog import doctor_view

        print_view(doctor_view(found))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    """Return the devices JAX sees; empty when it cannot be imported."""
    try:
        import jax
    except ImportError:
        return []
    return [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
