"""A model in one record: its parameters, its layers by kind, what it stores."""

from __future__ import annotations

from kvroof.ground.record import record, static
from kvroof.memory.kv import KindBytes, growth_bytes, kinds
from kvroof.spec.architecture import Architecture, Layer, Mixer, Tower
from kvroof.spec.attention import CompressedAttention, LatentAttention
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.params import params_active, params_embedding, params_total, weight_bytes
from kvroof.spec.precision import parse_kv_format
from kvroof.spec.recurrent import Recurrent


@record
class LayerCard:
    """Equal layers in words; `params_per_layer` is what each stores, without what layers share."""

    layers: int
    attention: str = static()
    feed_forward: str = static()
    params_per_layer: int


@record
class ModelCard:
    """What there is to know about a model before anything runs; sizes in bytes as the checkpoint stores."""

    name: str = static()
    model_type: str = static()
    params_total: int
    params_active: int
    params_embedding: int
    towers: tuple[Tower, ...]
    weights_format: str = static()
    weights_bytes: int
    kv_dtype: str = static()
    bytes_per_token: int
    kinds: tuple[KindBytes, ...]
    layers: tuple[LayerCard, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int | None
    notes: tuple[str, ...] = static()


def describe(model: Architecture) -> ModelCard:
    """Return the card of a model; `bytes_per_token` is the growth of a short sequence."""
    kv_format = parse_kv_format("auto", model)
    return ModelCard(
        name=model.name,
        model_type=model.model_type,
        params_total=params_total(model),
        params_active=params_active(model),
        params_embedding=params_embedding(model),
        towers=model.towers,
        weights_format=model.formats.name,
        weights_bytes=weight_bytes(model),
        kv_dtype=kv_format.name,
        bytes_per_token=growth_bytes(model, 0, kv_format),
        kinds=kinds(model, kv_format),
        layers=tuple(_layer_card(group.layer, group.count) for group in model.layers),
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        notes=model.notes,
    )


def _layer_card(layer: Layer, count: int) -> LayerCard:
    return LayerCard(
        layers=count,
        attention=" + ".join(_attention(m) + _shared(m) for m in layer.mixers) or "-",
        feed_forward=" + ".join(_feed_forward(f) + _shared(f) for f in layer.ffns) or "-",
        params_per_layer=sum(w.elements for w in layer.own_weights),
    )


def _shared(part: Mixer | FFN) -> str:
    return ", shared weights" if part.shared else ""


def _attention(mixer: Mixer) -> str:
    if isinstance(mixer, Recurrent):
        return mixer.kind
    if isinstance(mixer, LatentAttention):
        return f"MLA, {mixer.num_heads} heads, latent {mixer.kv_lora_rank} + rotary {mixer.qk_rope_head_dim}"
    if isinstance(mixer, CompressedAttention):
        parts = " + ".join(f"{p.cache.reach.kind} {p.cache.reach.window or ''}".strip() for p in mixer.scored)
        return f"shared K = V, {mixer.num_heads} heads x {mixer.head_dim}, {parts}"
    heads, groups = mixer.num_heads, mixer.num_kv_heads
    name = "MHA" if heads == groups else "MQA" if groups == 1 else "GQA"
    reach = mixer.reach
    span = f"{reach.kind} {reach.window:,}" if reach.window else reach.kind
    return f"{name} {heads}/{groups} x {mixer.head_dim}, {span}"


def _feed_forward(ffn: FFN) -> str:
    if isinstance(ffn, MoE):
        shared = f" + shared {ffn.shared_intermediate_size:,}" if ffn.shared_intermediate_size else ""
        latent = f", latent {ffn.expert_input_size:,}" if ffn.expert_input_size else ""
        count = f"{ffn.num_experts_per_tok} of {ffn.num_experts}"
        return f"MoE {count} x {ffn.moe_intermediate_size:,}{latent}{shared}"
    gate = "gated" if ffn.gated else "plain"
    return f"{gate} MLP {ffn.intermediate_size:,}"
