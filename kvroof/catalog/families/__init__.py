"""Which family a `model_type` belongs to. A new one is declared in a module here, in its `FAMILIES`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from kvroof.catalog.families.family import Decoder, Family, build

MODULES = (
    "llama_like",
    "moe",
    "mla",
    "gemma",
    "linear_attention",
    "kimi",
    "sparse",
    "state_space",
    "deepseek_v4",
    "classic",
    "gated_mla",
    "nested",
    "encoder_decoder",
    "moe_remote",
    "per_layer",
    "recurrent_only",
    "remote",
    "zamba",
    "zaya",
)
"""The modules that declare families, the most asked for first: none is imported before it is needed."""


class Families(Mapping[str, Family]):
    """Every family by its `model_type`, read from the modules one after another until it is found."""

    def __getitem__(self, model_type: str) -> Family:
        """Return the family of a `model_type`."""
        for name in MODULES:
            found = _declared(name).get(model_type)
            if found is not None:
                return found
        raise KeyError(model_type)

    def __iter__(self) -> Iterator[str]:
        """Yield every `model_type`, importing all modules."""
        return (model_type for name in MODULES for model_type in _declared(name))

    def described(self) -> dict[str, str]:
        """Return what each `model_type` is of: the first line of the module that declares it."""
        return {
            model_type: (importlib.import_module(f"{__name__}.{name}").__doc__ or "").partition("\n")[0]
            for name in MODULES
            for model_type in _declared(name)
        }

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(len(_declared(name)) for name in MODULES)


def _declared(name: str) -> dict[str, Family]:
    declared: dict[str, Family] = importlib.import_module(f"{__name__}.{name}").FAMILIES
    return declared


FAMILIES = Families()

__all__ = ["FAMILIES", "Decoder", "Families", "Family", "build"]
