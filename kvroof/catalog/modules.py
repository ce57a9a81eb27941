"""Checkpoint module names: what our weights are called there, and the patterns that configs name them by."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvroof.ground.errors import BadInput
from kvroof.spec.architecture import Layer
from kvroof.spec.weights import Role, Weight

MAX_PATTERN = 200
MAX_WILDCARDS = 6
MAX_WILD = 1024
MAX_LOOSE = 3
"""Parts of a regex that can match more than one length, `.*` aside."""
MAX_EXPERTS = 4096

_TOKEN = re.compile(
    r"(?P<any>\.\*)|\((?:\?:)?(?P<group>(?:\w|-|\||\\\.|\[\d-\d\])+)\)"
    r"|(?:\\d|\[\d-\d\])(?P<more>\+)?|\\[.-]|[\w\-/$^.]"
)
_KEPT: tuple[Role, ...] = ("vector", "router")
"""Roles that no quantiser touches."""
_OF_ONE_EXPERT = re.compile(r"experts\\?\.[\d(\[\\]")

PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("self_attn", "attn", "self_attention", "attention", "mixer", "norm_attn_norm.attn"),
    "cross": ("cross_attn", "encoder_attn", "EncDecAttention"),
    "gdn": ("linear_attn",),
    "kda": ("self_attn", "attention"),
    "lightning": ("self_attn", "attention"),
    "mamba1": ("mamba", "mixer"),
    "mamba2": ("mamba", "mixer"),
    "mlstm": ("mlstm_layer",),
    "rglru": ("temporal_block",),
    "rwkv": ("attention",),
    "short_conv": ("conv",),
    "ffn": ("mlp", "ffn", "feed_forward", "mixer", "mlp_block"),
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
        for name in ("shared_experts", "shared_expert", "shared_mlp")
    ),
    "layer": ("",),
}
"""What the parts of a layer are called: attention or a kind of mixer, MLP, experts, what lies beside them.

A family whose checkpoints call them otherwise, or in which one of these names is another part's, says so.
"""
_QKV = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "wqkv")
_MATRICES: dict[str, tuple[tuple[str, ...], ...]] = {
    "kv_a_proj": (("kv_a_proj_with_mqa", "kv_a_proj"),),
    "gate_up_proj": (
        ("gate_proj", "w1", "gate_up_proj", "input_linear"),
        ("up_proj", "w3", "v1", "gate_up_proj", "input_linear"),
    ),
    "up_proj": (("up_proj", "fc1", "c_fc", "dense_h_to_4h"),),
    "down_proj": (("down_proj", "w2", "output_linear", "fc2", "c_proj", "dense_4h_to_h"),),
    "q_proj": (("q_proj", *_QKV),),
    "k_proj": (("k_proj", *_QKV),),
    "v_proj": (("v_proj", *_QKV),),
    "o_proj": (("o_proj", "out_proj", "c_proj", "dense", "wo"),),
    "indexer.q_proj": (("indexer.q_proj", "index_q_proj"),),
    "indexer.k_proj": (("indexer.k_proj", "index_k_proj"),),
}
"""The matrices of a checkpoint that one of ours is made of, each with the names it may have."""
STEMS = (
    "language_model.model.layers",
    "model.language_model.layers",
    "model.decoder.layers",
    "transformer.encoder.layers",
    "transformer.blocks",
    "transformer.layers",
    "transformer.h",
    "gpt_neox.layers",
    "backbone.layers",
    "model.layers",
    "layers",
)
"""What the list of layers is called, a name that lies in another after it."""
_USUAL = "model.layers"


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
        """The patterns that are globs or regexes, beginnings aside."""
        found = [p for p in self.patterns if _is_wild(p) and not _is_beginning(p)]
        if len(found) > MAX_WILD:
            raise BadInput(f"{len(found)} module patterns", where="quantization_config")
        return tuple(_compiled(p) for p in found)

    @functools.cached_property
    def beginnings(self) -> tuple[str, ...]:
        """The globs that are a name's beginning and a `*`, without it: the most of a long list."""
        return tuple(p[:-1] for p in self.patterns if _is_beginning(p))

    def match(self, module: str) -> bool:
        """Return whether any pattern names `module` or something it lies in."""
        if "Linear" in self.names or module.startswith(self.beginnings):
            return True
        parts = module.split(".")
        spans = (".".join(parts[a : a + n]) for n in self._lengths for a in range(len(parts) - n + 1))
        return any(s in self.names for s in spans) or any(p.match(module) for p in self.wild)

    @functools.cached_property
    def _lengths(self) -> frozenset[int]:
        """How many parts the plain names have."""
        return frozenset(name.count(".") + 1 for name in self.names)

    @functools.cached_property
    def of_one_expert(self) -> bool:
        """Whether any pattern tells one expert from another by its number."""
        return any(_OF_ONE_EXPERT.search(pattern) for pattern in self.patterns)


def _is_wild(pattern: str) -> bool:
    return pattern.startswith("re:") or any(sign in pattern for sign in "*?[")


def _is_beginning(pattern: str) -> bool:
    return pattern.endswith("*") and not _is_wild(pattern[:-1])


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

    Literals, `.`, `.*`, digits, and groups of literal alternatives are kept; the rest is refused. What
    follows a `.*` is looked for once where it has one length: its first place serves as well as any.
    """
    segments, loose, at = [""], [0], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _not_simple(text, "more than names and wildcards")
        at = found.end()
        if found["any"]:
            segments.append("")
            loose.append(0)
            continue
        segments[-1] += found[0]
        either = re.sub(r"\\|\[\d-\d(?=\])", "", found["group"] or "").split("|")
        if len(set(either)) < len(either):
            raise _not_simple(text, "the same twice")
        loose[-1] += found["more"] is not None or len({len(one) for one in either}) > 1
    if len(segments) > MAX_WILDCARDS + 1 or sum(loose) > MAX_LOOSE:
        raise _not_simple(text, "too many wildcards")
    ahead = [f".*?{s}" if n else f"(?>.*?{s})" for s, n in zip(segments[1:], loose[1:], strict=True)]
    try:
        re.compile(made := segments[0] + "".join(ahead))
    except re.error:
        raise _not_simple(text, "a range that is none") from None
    return made


def _not_simple(text: str, what: str) -> BadInput:
    return BadInput(
        f"the pattern {text!r} has {what}",
        where="quantization_config",
        way_out="write it as names and .*, or give the storage with --weights-dtype",
    )


def layer_modules(
    layer: Layer,
    index: int,
    stems: Iterable[str],
    parts: Mapping[str, tuple[str, ...]],
    every_expert: bool,
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each matrix that may be quantised: our weight's name, and the names the module may have.

    Args:
        layer: The layer.
        index: Where it stands in the stack.
        stems: What the list of layers may be called.
        parts: What the family calls the parts of a layer, where it is not as `PARTS` says; `{}` in a name
            is the number of the part among those of its kind.
        every_expert: Whether to name all experts; else the first stands for them.
    """
    for weight, kind, number in _placed(layer):
        places = [part.format(number) for part in parts.get(kind) or PARTS[kind]]
        for names in _matrices(weight, every_expert):
            yield (
                weight.name,
                tuple(
                    ".".join(filter(None, (stem, str(index), place, name)))
                    for stem in stems
                    for place in places
                    for name in names
                ),
            )


def _placed(layer: Layer) -> Iterator[tuple[Weight, str, int]]:
    """Yield the weights of a layer that may be quantised, the kind of their part, and its number."""
    seen: dict[str, int] = {}
    for mixer in layer.mixers:
        kind = mixer.kind if mixer.kind in PARTS else "attention"
        for weight in mixer.weights:
            if weight.role not in _KEPT:
                yield weight, kind, seen.get(kind, 0)
        seen[kind] = seen.get(kind, 0) + 1
    for number, ffn in enumerate(layer.ffns):
        for weight in ffn.weights:
            if weight.role not in _KEPT:
                yield weight, weight.role, number
    for weight in layer.norms:
        if weight.role not in _KEPT:
            yield weight, "layer", 0


def _matrices(weight: Weight, every_expert: bool) -> Iterator[tuple[str, ...]]:
    """Yield the names, inside its part, of each matrix that a weight is made of."""
    base = weight.name.rpartition(".")[2]
    if weight.routed:
        for names in _MATRICES.get(base, ((base,),)):
            for n in range(min(weight.count, MAX_EXPERTS) if every_expert else 1):
                yield (*(f"{n}.{name}" for name in names), *names)
    elif weight.role == "shared_expert":
        yield from _MATRICES.get(base, ((base,),))
    else:
        yield from _MATRICES.get(weight.name, ((weight.name,),))


def stems_in(modules: Iterable[Modules]) -> tuple[str, ...]:
    """Return the spellings of the layer list that the patterns use, else the usual one."""
    patterns = (pattern.replace("\\", "") for m in modules for pattern in m.patterns)
    used = {next((stem for stem in STEMS if stem in pattern), "") for pattern in patterns} - {""}
    return tuple(used if used - {"layers"} else used | {_USUAL})
