"""How the matrices of a checkpoint are stored, module by module: rules in order, the first one decides."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvroof.catalog.modules import Modules, layer_modules, stems_in
from kvroof.ground.errors import Unsupported
from kvroof.spec.architecture import Architecture, Layer, stack
from kvroof.spec.weights import Format, StoredAs, WeightFormats


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Modules that are stored in `format`, None as they were: those `included`, less those `excluded`."""

    format: Format | None
    included: Modules
    excluded: Modules


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """What a checkpoint says of its storage: rules in order, the first that names a module decides.

    `head` is the format of an output head with a matrix of its own, where the checkpoint quantises it.
    """

    name: str
    rules: tuple[Rule, ...]
    head: Format | None = None
    kv_dtype: str | None = None

    def format_of(self, modules: Sequence[str]) -> Format | None:
        """Return the format of a matrix by the names it may have, None where it is not quantised."""
        for rule in self.rules:
            named = any(rule.included.match(m) for m in modules)
            if named and not any(rule.excluded.match(m) for m in modules):
                return rule.format
        return None

    @functools.cached_property
    def stems(self) -> tuple[str, ...]:
        """The spellings of the layer list that the rules use."""
        return stems_in(m for rule in self.rules for m in (rule.included, rule.excluded))

    @functools.cached_property
    def of_one_expert(self) -> bool:
        """Whether a rule may store one expert otherwise than another."""
        return any(m.of_one_expert for rule in self.rules for m in (rule.included, rule.excluded))

    def formats(
        self, layer: Layer, index: int, rest: Format, parts: Mapping[str, tuple[str, ...]]
    ) -> WeightFormats:
        """Return the storage of the layer at `index`, what is not quantised as `rest`.

        Raises:
            Unsupported: The matrices that make one of our weights are stored in different formats.
        """
        found: dict[str, set[Format | None]] = {}
        for name, modules in layer_modules(layer, index, self.stems, parts, self.of_one_expert):
            found.setdefault(name, set()).add(self.format_of(modules))
        for name, formats in found.items():
            if len(formats) > 1:
                raise Unsupported(
                    f"stores parts of {name} of layer {index} in different formats",
                    where="quantization_config",
                    way_out="give the storage by hand with --weights-dtype and"
                    " --ignore-key quantization_config",
                )
        stored = ((name, formats.pop()) for name, formats in found.items())
        exceptions = tuple(StoredAs(what=name, format=one) for name, one in stored if one is not None)
        return WeightFormats(name=self.name, default=rest, exceptions=exceptions)


def store(
    model: Architecture, quantization: Quantization, parts: Mapping[str, tuple[str, ...]]
) -> Architecture:
    """Return `model` with every layer stored as the checkpoint says, equal layers grouped anew.

    `parts` is what the model's family calls the parts of a layer, where that is not the usual.
    """
    rest = model.formats.default
    layers = [model.layers[group].layer for group in model.order]
    stored = [
        replace(layer, formats=quantization.formats(layer, index, rest, parts))
        for index, layer in enumerate(layers)
    ]
    groups, order = stack(stored)
    head = () if quantization.head is None else (StoredAs(what="lm_head", format=quantization.head),)
    named = replace(model.formats, name=quantization.name, exceptions=head)
    return replace(model, layers=groups, order=order, formats=named, kv_dtype=quantization.kv_dtype)
