"""XLA counts the FLOPs of real layers, written here in plain jnp, and kvroof has to agree.

Nothing is shared with the package but the shapes: each layer below is arithmetic on arrays, compiled
for the CPU, and `cost_analysis()` of the executable counts what XLA kept of it. XLA counts a loop's
body once, so there are no loops: queries are unrolled, each against exactly the keys its reach lets it
see, and the pairs are counted by the compiler instead of by a formula (a masked square would count
n * n pairs where causal attention has n (n + 1) / 2).

Tolerance. kvroof counts matrix products and leaves out what is fused around them: softmax (5 FLOPs per
score beside `2 (qk_dim + v_dim)`, here 320 or more), norms (4 per element beside 2 * out_features),
the gate of the MLP (5 per element beside 6 * hidden) and the residual sums. At these widths they are
under 1 % of a layer. The other way, XLA drops the scores of a query that sees a single key (their
softmax is 1), at most one query in 8 here: under 0.2 %.
"""

import jax
import jax.numpy as jnp
import pytest

from kvroof.catalog.huggingface import read_architecture
from kvroof.cost.forward import forward
from kvroof.roofline.plan import Plan
from kvroof.spec.workload import Sequences, Step

TOLERANCE = 0.02

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 512, 8, 2, 128, 1024
GROUPS = HEADS // KV_HEADS
GQA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
}
WINDOW = 8
CONFIGS = {
    "full": GQA,
    "sliding": {**GQA, "model_type": "mistral", "sliding_window": WINDOW},
}
RANK, NOPE, ROPE, V_DIM, Q_RANK = 256, 128, 64, 128, 192
MLA = {
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "q_lora_rank": Q_RANK,
    "kv_lora_rank": RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": V_DIM,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
}
EXPERTS, PER_TOKEN, EXPERT_INNER = 16, 3, 384
MOE = {
    **{key: value for key, value in GQA.items() if key != "intermediate_size"},
    "model_type": "qwen3_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": PER_TOKEN,
    "moe_intermediate_size": EXPERT_INNER,
}


def xla_flops(function, *shapes):
    """Return the FLOPs of `function` as XLA compiled it, for float32 arrays of these shapes."""
    arguments = [
        s if isinstance(s, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes
    ]
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


def kvroof_flops(config, step, only=None, latent="absorbed"):
    """Return the FLOPs of the one layer (or of the operations whose names hold `only`)."""
    model = read_architecture({**config, "torch_dtype": "float32"}, "oracle", "oracle").architecture
    ops = forward(model, step, Plan.of(model, "h100-sxm").run(latent))
    return sum(o.count * o.flops for o in ops if o.name != "lm_head" and (only is None or only in o.name))


def agrees(counted, compiled):
    assert compiled == pytest.approx(counted, rel=TOLERANCE)


def one(count, query_len, kv_len):
    return Step(groups=(Sequences(count=count, query_len=query_len, kv_len=kv_len),))


def seen(kind, last):
    """Return the slice of keys that the query at position `last` sees, itself included."""
    first = {"full": 0, "sliding": max(0, last - WINDOW + 1), "chunked": last // WINDOW * WINDOW}[kind]
    return slice(first, last + 1)


# The layers. Shapes: x [T, h]; q [T, H, d]; k, v [T, K, d]; queries are unrolled over their keys.


def softmax(scores):
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def norm(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True))


def grouped_queries(q, k, v, kind, start):
    """Return what each query, the first at position `start`, mixes of exactly the keys it sees."""
    mixed = []
    for i in range(q.shape[0]):
        keys = seen(kind, start + i)
        scores = jnp.einsum("kgd,tkd->kgt", q[i].reshape(KV_HEADS, GROUPS, HEAD_DIM), k[keys])
        mixed.append(jnp.einsum("kgt,tkd->kgd", softmax(scores), v[keys]).reshape(-1))
    return jnp.stack(mixed)


def mlp(x, gate, up, down):
    gated = x @ gate
    return (gated * jax.nn.sigmoid(gated) * (x @ up)) @ down


MLP_SHAPES = ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
QKVO_SHAPES = (
    (HIDDEN, HEADS * HEAD_DIM),
    (HIDDEN, KV_HEADS * HEAD_DIM),
    (HIDDEN, KV_HEADS * HEAD_DIM),
    (HEADS * HEAD_DIM, HIDDEN),
)


def gqa_layer(kind, start):
    """Return a layer that runs tokens from `start` on, over a cache of the ones before."""

    def layer(x, past_k, past_v, wq, wk, wv, wo, gate, up, down):
        y = norm(x)
        k = jnp.concatenate([past_k, (y @ wk).reshape(-1, KV_HEADS, HEAD_DIM)])
        v = jnp.concatenate([past_v, (y @ wv).reshape(-1, KV_HEADS, HEAD_DIM)])
        x = x + grouped_queries((y @ wq).reshape(-1, HEADS, HEAD_DIM), k, v, kind, start) @ wo
        return x + mlp(norm(x), gate, up, down)

    return layer


def cache_shape(tokens):
    return (tokens, KV_HEADS, HEAD_DIM)


@pytest.mark.parametrize("kind", ["full", "sliding"])
@pytest.mark.parametrize("start", [0, 13], ids=["whole", "chunk"])
def test_a_prefill_layer_has_the_flops_xla_counts(kind, start):
    n = 16
    compiled = xla_flops(
        gqa_layer(kind, start), (n, HIDDEN), cache_shape(start), cache_shape(start), *QKVO_SHAPES, *MLP_SHAPES
    )
    agrees(kvroof_flops(CONFIGS[kind], one(1, n, start + n)), compiled)


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked"])
@pytest.mark.parametrize("start", [0, 13], ids=["whole", "chunk"])
def test_attention_alone_has_the_flops_xla_counts(kind, start):
    from kvroof.cost.formulas import attention_flops, step_pairs
    from kvroof.spec.reach import Chunked

    n = 16
    compiled = xla_flops(
        lambda q, k, v: grouped_queries(q, k, v, kind, start),
        (n, HEADS, HEAD_DIM),
        cache_shape(start + n),
        cache_shape(start + n),
    )
    step = one(1, n, start + n)
    if kind == "chunked":  # no family of the catalog is needed for this
        counted = attention_flops(step_pairs(step, Chunked(size=WINDOW)), HEADS, HEAD_DIM, HEAD_DIM)
    else:
        counted = kvroof_flops(CONFIGS[kind], step, only="attention.")
    agrees(counted, compiled)


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_a_decode_layer_over_a_cache_has_the_flops_xla_counts(kind):
    batch, kv_len = 4, 300

    def layer(x, past_k, past_v, wq, wk, wv, wo, gate, up, down):
        y = norm(x)
        k = jnp.concatenate([past_k, (y @ wk).reshape(batch, 1, KV_HEADS, HEAD_DIM)], axis=1)
        v = jnp.concatenate([past_v, (y @ wv).reshape(batch, 1, KV_HEADS, HEAD_DIM)], axis=1)
        keys = seen(kind, kv_len - 1)
        q = (y @ wq).reshape(batch, KV_HEADS, GROUPS, HEAD_DIM)
        scores = softmax(jnp.einsum("bkgd,btkd->bkgt", q, k[:, keys]))
        mixed = jnp.einsum("bkgt,btkd->bkgd", scores, v[:, keys])
        x = x + mixed.reshape(batch, -1) @ wo
        return x + mlp(norm(x), gate, up, down)

    past = (batch, kv_len - 1, KV_HEADS, HEAD_DIM)
    compiled = xla_flops(layer, (batch, HIDDEN), past, past, *QKVO_SHAPES, *MLP_SHAPES)
    agrees(kvroof_flops(CONFIGS[kind], one(batch, 1, kv_len)), compiled)


MLA_SHAPES = (
    (HIDDEN, Q_RANK),
    (Q_RANK, HEADS * (NOPE + ROPE)),
    (HIDDEN, RANK + ROPE),
    (RANK, HEADS, NOPE),
    (RANK, HEADS, V_DIM),
    (HEADS * V_DIM, HIDDEN),
)


def mla_queries(y, q_down, q_up):
    q = (norm(y @ q_down) @ q_up).reshape(-1, HEADS, NOPE + ROPE)
    return q[..., :NOPE], q[..., NOPE:]


def test_absorbed_latent_decode_has_the_flops_xla_counts():
    batch, kv_len = 4, 300

    def layer(x, past, q_down, q_up, kv_down, k_up, v_up, wo, gate, up, down):
        y = norm(x)
        nope, rope = mla_queries(y, q_down, q_up)
        cache = jnp.concatenate([past, (y @ kv_down)[:, None]], axis=1)
        absorbed = jnp.concatenate([jnp.einsum("bhn,rhn->bhr", nope, k_up), rope], axis=-1)
        weights = softmax(jnp.einsum("bhr,btr->bht", absorbed, cache))
        latent = jnp.einsum("bht,btr->bhr", weights, cache[..., :RANK])
        x = x + jnp.einsum("bhr,rhv->bhv", latent, v_up).reshape(batch, -1) @ wo
        return x + mlp(norm(x), gate, up, down)

    past = (batch, kv_len - 1, RANK + ROPE)
    compiled = xla_flops(layer, (batch, HIDDEN), past, *MLA_SHAPES, *MLP_SHAPES)
    agrees(kvroof_flops(MLA, one(batch, 1, kv_len)), compiled)


@pytest.mark.parametrize("start", [0, 13], ids=["whole", "cached prefix"])
def test_expanded_latent_prefill_has_the_flops_xla_counts(start):
    """A cached prefix is expanded again: its latents become keys and values for this step."""
    n = 16

    def layer(x, past, q_down, q_up, kv_down, k_up, v_up, wo, gate, up, down):
        y = norm(x)
        nope, rope = mla_queries(y, q_down, q_up)
        cache = jnp.concatenate([past, y @ kv_down])
        shared = jnp.broadcast_to(cache[:, None, RANK:], (start + n, HEADS, ROPE))
        k = jnp.concatenate([jnp.einsum("tr,rhn->thn", cache[:, :RANK], k_up), shared], axis=-1)
        v = jnp.einsum("tr,rhv->thv", cache[:, :RANK], v_up)
        q = jnp.concatenate([nope, rope], axis=-1)
        mixed = []
        for i in range(n):
            keys = seen("full", start + i)
            weights = softmax(jnp.einsum("hd,thd->ht", q[i], k[keys]))
            mixed.append(jnp.einsum("ht,thv->hv", weights, v[keys]).reshape(-1))
        x = x + jnp.stack(mixed) @ wo
        return x + mlp(norm(x), gate, up, down)

    compiled = xla_flops(layer, (n, HIDDEN), (start, RANK + ROPE), *MLA_SHAPES, *MLP_SHAPES)
    agrees(kvroof_flops(MLA, one(1, n, start + n), latent="expanded"), compiled)


def test_a_gated_mlp_has_the_flops_xla_counts():
    tokens = 64
    compiled = xla_flops(mlp, (tokens, HIDDEN), *MLP_SHAPES)
    counted = kvroof_flops(GQA, one(tokens, 1, 1), only="gate_up_proj") + kvroof_flops(
        GQA, one(tokens, 1, 1), only="down_proj"
    )
    agrees(counted, compiled)


def test_a_plain_mlp_has_the_flops_xla_counts():
    tokens = 64
    config = {
        "model_type": "falcon",
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "vocab_size": 1000,
    }

    def layer(x, up, down):
        return jax.nn.relu(x @ up) @ down

    compiled = xla_flops(layer, (tokens, HIDDEN), (HIDDEN, 4 * HIDDEN), (4 * HIDDEN, HIDDEN))
    counted = sum(kvroof_flops(config, one(tokens, 1, 1), only=name) for name in ("up_proj", "down_proj"))
    agrees(counted, compiled)


def test_a_mixture_of_experts_has_the_flops_xla_counts():
    """Each token gathers exactly its k experts' matrices, so that XLA multiplies with no others."""
    tokens = 24

    def layer(x, chosen, router, gate, up, down):
        scores = softmax(x @ router)
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        gated = jnp.einsum("th,tkhi->tki", x, gate[chosen])
        inner = gated * jax.nn.sigmoid(gated) * jnp.einsum("th,tkhi->tki", x, up[chosen])
        return jnp.einsum("tki,tkih,tk->th", inner, down[chosen], weights)

    compiled = xla_flops(
        layer,
        (tokens, HIDDEN),
        jax.ShapeDtypeStruct((tokens, PER_TOKEN), jnp.int32),
        (HIDDEN, EXPERTS),
        (EXPERTS, HIDDEN, EXPERT_INNER),
        (EXPERTS, HIDDEN, EXPERT_INNER),
        (EXPERTS, EXPERT_INNER, HIDDEN),
    )
    counted = sum(kvroof_flops(MOE, one(tokens, 1, 1), only=name) for name in ("router", "experts"))
    agrees(counted, compiled)


def test_the_head_on_sampled_positions_has_the_flops_xla_counts():
    batch, n = 3, 40
    model = read_architecture(GQA, "oracle", "oracle").architecture
    ops = forward(model, one(batch, n, n), Plan.of(model, "h100-sxm").run("absorbed"))
    (head,) = (op.flops for op in ops if op.name == "lm_head")
    compiled = xla_flops(lambda x, w: x[:, -1] @ w, (batch, n, HIDDEN), (HIDDEN, 1000))
    assert head == compiled
