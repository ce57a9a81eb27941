"""Mixtures of experts with a layout of their own: Hunyuan-A13B, Command A, Arctic, Grok."""

from __future__ import annotations

from collections.abc import Callable

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import Reach, experts, flag, heads, listed, mlp
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.llama_like import BIAS, grouped
from kvroof.catalog.families.moe import LOCAL_EXPERTS
from kvroof.catalog.families.schedule import after, listed_mlps, mixed, shared_experts
from kvroof.spec.ffn import FFN, MoE
from kvroof.spec.reach import Full, Sliding

GROK = Family(
    mixers=heads(shape=grouped()),
    ffns=LOCAL_EXPERTS,
    norms=4,
    tied=True,
    meaningless=frozenset({"attn_output_multiplier", "max_attn_value"}),
)


def uniform(config: Config, key: str, default: int) -> int:
    """Return a number that a file may also give as a list of one and the same for every layer."""
    if not isinstance(config.data.get(key), list):
        return config.integer(key, default)
    found = config.array(key, int)
    if not found or len(set(found)) != 1 or found[0] < 1:
        config.fail(key, "is not one number for every layer")
    return int(found[0])


_OFF = ("use_cla", "use_mla")
_CLA = frozenset({"cla_share_factor", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"})


def _hunyuan_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return experts and one shared MLP, all as wide as a dense MLP would be."""
    for key in _OFF:
        if flag(config, key):
            config.fail(key, "is not understood for this family")
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    if (
        uniform(config, "moe_intermediate_size", inner) != inner
        or uniform(config, "num_shared_expert", 1) != 1
    ):
        config.fail(
            "moe_intermediate_size", "or the shared experts are not those that this family's class has"
        )
    if config.integer("moe_layer_num_skipped", 0, minimum=0) or not config.boolean("use_mixed_mlp_moe", True):
        config.fail("moe_layer_num_skipped", "or use_mixed_mlp_moe is not what this family's class has")
    count, active = config.integer("num_experts"), uniform(config, "moe_topk", 1)
    if active > count:
        config.fail("moe_topk", f"is {active} of {count} experts")
    return (
        MoE(
            hidden_size=hidden,
            num_experts=count,
            num_experts_per_tok=active,
            moe_intermediate_size=inner,
            shared_intermediate_size=inner,
        ),
    )


HUNYUAN_MOE = Family(
    mixers=heads(qkv_bias=BIAS, o_bias=BIAS, qk_norm="head", qk_norm_if=("use_qk_norm", True)),
    ffns=_hunyuan_ffns,
    meaningless=_CLA
    | {
        "attention_head_dim",
        "moe_drop_tokens",
        "moe_random_routing_dropped_token",
        "v_head_dim",
    },
)


def _cohere_reach(config: Config, layer: int) -> Reach:
    """Return windows with every fourth layer full, counted anew after the dense layers."""
    dense = config.integer("first_k_dense_replace", 0, minimum=0)
    first = config.integer("prefix_dense_sliding_window_pattern", 1)
    period = config.integer("sliding_window_pattern", 4)
    turn = (layer + 1) % first if layer < dense else (layer - dense + 1) % period
    return Sliding(size=config.integer("sliding_window", 4096)) if turn else Full()


def _dense_width(config: Config) -> int:
    """Return the width of the dense layers before the experts."""
    return config.integer("prefix_dense_intermediate_size")


COHERE2_MOE = Family(
    mixers=heads(head_dim=128, qkv_bias=BIAS, o_bias=BIAS, reach=listed(_cohere_reach, 4096)),
    ffns=mixed(
        listed_mlps(after(0)),
        experts(width="intermediate_size", shared=shared_experts("num_shared_experts", "intermediate_size")),
        mlp(width=_dense_width),
    ),
    norms=1,
    parallel=True,
    tied=True,
    meaningless=frozenset(
        {
            "expert_selection_fn",
            "prefix_dense_intermediate_size",
            "prefix_dense_sliding_window_pattern",
            "shared_expert_combination_strategy",
        }
    ),
)


def _arctic_sparse(config: Config, layer: int) -> bool:
    """Return experts on every `moe_layer_frequency`-th layer."""
    return (layer + 1) % config.integer("moe_layer_frequency") == 0


def _residual(config: Config) -> bool:
    """Return whether a layer with experts has a dense MLP beside them, as wide as the residual."""
    return config.boolean("parallel_attn_mlp_res")


def _arctic_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    if not _arctic_sparse(config, layer):
        return mlp()(config, layer)
    hidden: Callable[[Config], int] = lambda c: c.integer("hidden_size")  # noqa: E731
    beside = mlp(width=hidden)(config, layer) if _residual(config) else ()
    return LOCAL_EXPERTS(config, layer) + beside


def _arctic_norms(config: Config, layer: int) -> int:
    return 3 if _arctic_sparse(config, layer) and _residual(config) else 2


ARCTIC = Family(
    mixers=heads(shape=grouped(), qkv_bias=BIAS, o_bias=BIAS),
    ffns=_arctic_ffns,
    norms=_arctic_norms,
    meaningless=frozenset(
        {
            "enable_expert_tensor_parallelism",
            "moe_eval_capacity_factor",
            "moe_min_capacity",
            "moe_token_dropping",
            "moe_train_capacity_factor",
            "num_experts",
        }
    ),
    parts={"ffn": ("residual_mlp", "block_sparse_moe.mlp"), "expert": ("block_sparse_moe.experts",)},
)

FAMILIES = {
    "arctic": ARCTIC,
    "cohere2_moe": COHERE2_MOE,
    "grok-1": GROK,
    "hunyuan_v1_moe": HUNYUAN_MOE,
}
