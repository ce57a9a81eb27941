"""Checkpoint module names: what our weights are called there, and the patterns that configs name them by."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvroof.ground.errors import BadInput
from kvroof.spec.weights import Weight

MAX_PATTERN = 200
MAX_WILDCARDS = 6

_PARTS = {
    "attention": ("self_attn", "attn", "mixer", "linear_attn", "attention"),
    "ffn": ("mlp", "ffn", "feed_forward", "block_sparse_moe", "mixer"),
    "expert": (
        "mlp.experts",
        "ffn.experts",
        "block_sparse_moe.experts",
        "feed_forward.experts",
        "mixer.experts",
    ),
    "shared_expert": tuple(
        f"{part}.{name}"
        for part in ("mlp", "ffn", "block_sparse_moe", "feed_forward", "mixer")
        for name in ("shared_experts", "shared_expert")
    ),
}
_OTHER_NAMES = {
    "kv_a_proj": ("kv_a_proj_with_mqa", "kv_a_proj"),
    "gate_up_proj": ("gate_proj", "up_proj", "gate_up_proj"),
}
_STEMS = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "backbone.layers",
    "layers",
)


@dataclass(frozen=True)
class Modules:
    """Patterns of module names: a name or a part of one, a glob, a `re:` regex, or `Linear` for all."""

    patterns: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Iterable[str] | None) -> Modules:
        """Return the patterns as given; none for None."""
        return cls(tuple(patterns or ()))

    @classmethod
    def linear(cls) -> Modules:
        """Return every linear layer."""
        return cls(("Linear",))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The patterns that are plain names."""
        return frozenset(p for p in self.patterns if not _is_wild(p))

    @functools.cached_property
    def wild(self) -> tuple[re.Pattern[str], ...]:
        """The patterns that are globs or regexes."""
        return tuple(_compiled(p) for p in self.patterns if _is_wild(p))

    def match(self, module: str) -> bool:
        """Return whether any pattern names `module` or something it lies in."""
        if "Linear" in self.names:
            return True
        parts = module.split(".")
        spans = (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))
        return any(s in self.names for s in spans) or any(p.match(module) for p in self.wild)

    def mention(self, text: str) -> bool:
        """Return whether any pattern contains `text`."""
        return any(text in pattern for pattern in self.patterns)


def _is_wild(pattern: str) -> bool:
    return pattern.startswith("re:") or any(sign in pattern for sign in "*?[")


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a glob, which names what lies in it too, or a regex; both from the start of a name."""
    if len(pattern) > MAX_PATTERN:
        raise BadInput(f"a module pattern of {len(pattern)} characters", where="quantization_config")
    if pattern.startswith("re:"):
        return re.compile(_safe_regex(pattern[3:]))
    if pattern.count("*") > MAX_WILDCARDS:
        raise BadInput(f"the pattern {pattern!r} has too many wildcards", where="quantization_config")
    inside = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    return re.compile(rf"{inside}(?:\..*)?\Z")


def _safe_regex(text: str) -> str:
    """Return a regex built from the few signs that such configs use, so that none can run away.

    Literals, `.`, `.*`, escapes, and groups of literal alternatives are kept; the rest is refused.
    """
    token = re.compile(r"\\[.\d]|\.\*|\.|\((?:\?:)?[\w.|\\]+\)|[\w\-/$^]|\[\d-\d\]\+?|\d\+")
    at = 0
    while at < len(text):
        found = token.match(text, at)
        if found is None:
            raise BadInput(
                f"the pattern {text!r} is more than names and wildcards", where="quantization_config"
            )
        at = found.end()
    if text.count(".*") > MAX_WILDCARDS:
        raise BadInput(f"the pattern {text!r} has too many wildcards", where="quantization_config")
    return text


def layer_modules(weight: Weight, index: int, stems: Iterable[str]) -> Iterator[str]:
    """Yield the names a layer's matrix may have in a checkpoint; nothing for what is never quantised."""
    if weight.role not in _PARTS:
        return
    base = weight.name.rpartition(".")[2]
    for stem in stems:
        for part in _PARTS[weight.role]:
            for name in _OTHER_NAMES.get(base, (base,)):
                inner = f"0.{name}" if weight.role == "expert" else name
                yield f"{stem}.{index}.{part}.{inner}"


def stems_in(modules: Iterable[Modules]) -> tuple[str, ...]:
    """Return the spellings of the layer list that the patterns use, else the usual one."""
    given = tuple(modules)
    used = tuple(stem for stem in _STEMS if any(m.mention(stem) for m in given))
    return used or _STEMS[:1]
