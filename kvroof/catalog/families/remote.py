"""Dense decoders whose class ships with the checkpoint (`trust_remote_code`), from their published code."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.catalog.families.blocks import Shape, experts, head_shape, heads, mlp
from kvroof.catalog.families.classic import mha
from kvroof.catalog.families.family import Family
from kvroof.catalog.families.llama_like import LLAMA, PHI3
from kvroof.spec.ffn import FFN, DenseFFN
from kvroof.spec.weights import Weight, vector

INTERNLM = Family(mixers=heads(shape=mha, qkv_bias=("bias", True), o_bias=("bias", True)))
INTERNLM2 = Family(mixers=heads(qkv_bias=("bias", True), o_bias=("bias", True)))


def _unbiased(config: Config, layer: int) -> Shape:
    """Return InternLM3's heads; its own code and transformers place biases differently."""
    for key in ("attention_bias", "qkv_bias", "bias", "mlp_bias"):
        if config.boolean(key, False):
            config.fail(key, "InternLM3 is known without biases")
    config.integer("num_key_value_heads")
    return head_shape(config, 128)


INTERNLM3 = Family(mixers=heads(shape=_unbiased))
BAICHUAN = Family(mixers=heads(shape=mha))
ORION = Family(norm_bias=True, mixers=heads())


def _qwen_shape(config: Config, layer: int) -> Shape:
    """Return Qwen-1's heads, of `kv_channels` each."""
    if config.has("visual"):
        config.fail("visual", "Qwen-VL's tower is not known")
    if not config.boolean("no_bias", True):
        config.fail("no_bias", "Qwen with biases beside the query, key and value ones is not known")
    n, width = config.integer("num_attention_heads"), config.integer("kv_channels", 128)
    return Shape(n, n, width, width)


QWEN = Family(
    mixers=heads(shape=_qwen_shape, qkv_bias=True),
    # The two up matrices are half of `intermediate_size` each.
    ffns=mlp(width=lambda config: config.integer("intermediate_size") // 2),
    meaningless=frozenset({"use_logn_attn"}),
)


def _chatglm_shape(config: Config, layer: int) -> Shape:
    """Return ChatGLM-2's heads (also GLM-4-9B), of `kv_channels`, grouped with `multi_query_attention`."""
    if config.integer("pre_seq_len", 0, minimum=0):
        config.fail("pre_seq_len", "a prefix encoder's parameters are not known")
    n, width = config.integer("num_attention_heads"), config.integer("kv_channels", 128)
    grouped = config.boolean("multi_query_attention", False)
    return Shape(n, config.integer("multi_query_group_num") if grouped else n, width, width)


def _chatglm_final(config: Config) -> tuple[Weight, ...]:
    """Return the last norm, where `post_layer_norm` keeps it."""
    if not config.boolean("rmsnorm", True):
        config.fail("rmsnorm", "ChatGLM is known with RMS norms")
    has = config.boolean("post_layer_norm", True)
    return (vector("norm", config.integer("hidden_size")),) if has else ()


def _chatglm_bias(config: Config) -> tuple[Weight, ...]:
    """Return nothing; both keys that may give the query bias are read here, and the linear one refused."""
    if config.boolean("add_bias_linear", False):
        config.fail("add_bias_linear", "ChatGLM is known without biases in its other matrices")
    return ()


CHATGLM = Family(
    mixers=heads(shape=_chatglm_shape, qkv_bias="add_qkv_bias"),
    final_norms=0,
    embedding_extras=_chatglm_bias,
    final_extras=_chatglm_final,
    meaningless=frozenset(
        {
            "multi_query_group_num",
            "apply_query_key_layer_scaling",
            "layernorm_epsilon",
            "attention_softmax_in_fp32",
        }
    ),
)


def _minicpm_ffns(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return MiniCPM's MLP, or its experts where `num_experts` says so."""
    if config.has("sparse_config"):
        config.fail("sparse_config", "MiniCPM-4's sparse attention is not known")
    if not config.integer("num_experts", 0, minimum=0):
        return mlp()(config, layer)
    return experts(width="intermediate_size")(config, layer)


MINICPM = Family(mixers=heads(), ffns=_minicpm_ffns, tied=True)


def _gegelu(config: Config, layer: int) -> tuple[FFN, ...]:
    """Return Phi-3-small's gated MLP, whose matrices have biases."""
    if config.has("ff_dim_multiplier"):
        config.fail("ff_dim_multiplier", "is not known; files give ff_intermediate_size")
    inner, hidden = config.integer("ff_intermediate_size"), config.integer("hidden_size")
    if config.boolean("gegelu_pad_to_256", True) and inner % 256:
        config.fail("ff_intermediate_size", "is not a multiple of 256, to which this class pads")
    return (DenseFFN(hidden_size=hidden, intermediate_size=inner, bias=True),)


# Its block-sparse layers read less; they store what full attention stores.
PHI3_SMALL = Family(
    mixers=heads(qkv_bias=True, o_bias=True),
    ffns=_gegelu,
    norm_bias=True,
    tied=True,
    meaningless=frozenset(
        """
        attention_bias blocksparse_block_size blocksparse_homo_head_pattern blocksparse_num_local_blocks
        blocksparse_triton_kernel_block_size blocksparse_vert_stride dense_attention_every_n_layers
        mup_attn_multiplier reorder_and_upcast_attn
        """.split()
    ),
)


FAMILIES = {
    "Yi": LLAMA,
    "aquila": LLAMA,
    "baichuan": BAICHUAN,
    "chatglm": CHATGLM,
    "internlm": INTERNLM,
    "internlm2": INTERNLM2,
    "internlm3": INTERNLM3,
    "minicpm": MINICPM,
    "orion": ORION,
    "phi3_v": PHI3,
    "phi3small": PHI3_SMALL,
    "qwen": QWEN,
    "skywork": LLAMA,
    "xverse": LLAMA,
}
