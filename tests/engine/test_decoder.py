"""The decoder is the spec's: its parameters, ratios and bytes; and its parts do what they are named for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvroof import Unsupported, load_model, model_names
from kvroof.catalog.models import read_entry
from kvroof.engine.cache import formats, new_cache, plan_cache
from kvroof.engine.decoder import Step, new_decoder, run_step
from kvroof.engine.delta import fold_delta
from kvroof.engine.experts import Experts
from kvroof.engine.past import NoPast
from kvroof.engine.recurrences import fold_scalar_decay, scan
from kvroof.engine.rotary import Rotary
from kvroof.engine.sampling import greedy
from kvroof.memory.allocators import Allocator
from kvroof.memory.demand import equal_lengths, ragged
from kvroof.memory.kv import cache_bytes
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.ffn import MoE
from kvroof.spec.params import params_total

from .small_engines import SCALE, small

KINDS = (
    "llama-3.1-8b",
    "falcon-7b",
    "gpt-oss-20b",
    "llama-4-scout-17b-16e-fp8-dynamic",
    "mimo-v2-flash",
    "deepseek-v2-lite",
    "gemma-4-e4b",
    "qwen3-next-80b-a3b",
    "falcon-h1-3b-base",
    "ai21-jamba-1.5-mini",
    "kimi-linear-48b-a3b",
)
PAGED = Allocator(name="paged", block_size=4)


def _arrays(tree):
    return jax.tree_util.tree_leaves(tree)


def test_a_model_of_each_type_has_the_specs_parameters_or_is_refused_by_its_part():
    refused = {}
    for model_type, name in {read_entry(name).config["model_type"]: name for name in model_names()}.items():
        try:
            model = small(name)
            weights = new_decoder(model, plan_cache(model, 4), "float32", 0)
        except Unsupported as error:
            refused[model_type] = error.reason
        else:
            assert sum(leaf.size for leaf in _arrays(weights.state)) == params_total(model), name
    assert all("the engine has no" in reason for reason in refused.values())
    assert {"deepseek_v32", "deepseek_v4", "t5", "whisper"} <= refused.keys()
    assert not refused.keys() & {read_entry(name).config["model_type"] for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_a_model_scaled_down_keeps_its_kinds_and_its_ratios(name):
    model, narrow = load_model(name), small(name)

    def seen(architecture):
        layers = [architecture.layers[group].layer for group in architecture.order]
        return {
            (mixer.kind, getattr(mixer, "stores_kv", True), type(ffn))
            for layer in layers
            for mixer in layer.mixers
            for ffn in layer.ffns
        }

    def groups(architecture):
        mixers = [m for g in architecture.layers for m in g.layer.mixers if isinstance(m, GroupedAttention)]
        return {m.num_heads / m.num_kv_heads for m in mixers}, {m.head_dim / m.v_head_dim for m in mixers}

    assert seen(narrow) == seen(model)
    assert groups(narrow) == groups(model)
    assert narrow.hidden_size == SCALE.hidden_size


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("name", KINDS)
def test_the_arrays_of_a_cache_take_what_the_ledger_allocates(name, kv_dtype):
    model, seqs, blocks_each = small(name), 3, 6
    plan = plan_cache(model, 4)
    num_blocks = [seqs * (blocks_each if group.ring is None else group.ring) for group in plan.groups]
    made = new_cache(plan, num_blocks, "float32", kv_dtype)
    stored = formats("float32", kv_dtype)
    assert made.nbytes == cache_bytes(model, equal_lengths(4 * blocks_each, seqs), PAGED, *stored)
    by_block = zip(num_blocks, plan.block_bytes(*stored), strict=True)
    assert made.nbytes == sum(count * size for count, size in by_block)


@pytest.mark.parametrize("name", KINDS)
def test_the_blocks_of_ragged_sequences_take_what_the_ledger_allocates(name):
    model, lengths = small(name), (1, 7, 8, 18, 33)
    plan, stored = plan_cache(model, 4), formats("float32", "bfloat16")
    sizes = plan.block_bytes(*stored)
    held = sum(
        group.blocks(length) * size
        for group, size in zip(plan.groups, sizes, strict=True)
        for length in lengths
    )
    assert held == cache_bytes(model, ragged(lengths), PAGED, *stored)


def test_a_step_updates_the_cache_in_place():
    model = small("llama-3.1-8b")
    plan = plan_cache(model, 4)
    weights, cache = new_decoder(model, plan, "float32", 0), new_cache(plan, [32], "float32", "float32")
    row = jnp.ones((2,), jnp.int32)
    step = Step(jnp.zeros((2, 1), jnp.int32), row, row, (jnp.zeros((2, 4), jnp.int32),))
    compiled = run_step.lower(weights.graph, weights.state, plan, cache, step).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == cache.nbytes


def test_the_same_seed_makes_the_same_weights_and_another_does_not():
    model = small("llama-3.1-8b")
    plan = plan_cache(model, 4)
    first, again, other = (_arrays(new_decoder(model, plan, "float32", seed).state) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_rotation_depends_on_the_distance_of_two_positions_only():
    rows = np.random.default_rng(0).standard_normal((1, 2, 1, 8))
    scores = [
        float(jnp.sum(turned[0, 0] * turned[0, 1]))
        for start in (0, 100)
        for turned in [Rotary(jnp.array([[start, start + 7]]))(jnp.asarray(rows))]
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


def test_experts_are_the_sum_of_the_picked_ones_by_their_shares():
    spec = MoE(hidden_size=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6)
    made = Experts(spec, "float32", np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    up, down = (np.asarray(made.held[f"experts.{part}"]) for part in ("gate_up_proj", "down_proj"))
    wanted = np.zeros_like(x)
    for index, token in enumerate(x):
        scores = token @ np.asarray(made.held["router"])
        picked = np.argsort(scores)[-2:]
        shares = np.exp(scores[picked]) / np.exp(scores[picked]).sum()
        for expert, share in zip(picked, shares, strict=True):
            gate, value = np.split(token @ up[expert], 2)
            wanted[index] += share * (gate / (1 + np.exp(-gate)) * value) @ down[expert]
    np.testing.assert_allclose(made(jnp.asarray(x)), wanted, rtol=2e-5, atol=2e-6)


def _all_real(num_seqs, query_len):
    return NoPast((), jnp.full((num_seqs,), query_len, jnp.int32), query_len, "float32")


def test_a_delta_rule_returns_the_last_value_written_under_a_key():
    # Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers: the delta rule replaces.
    keys = jnp.eye(4)[jnp.array([0, 1, 0, 1])][None, :, None]
    values = jnp.arange(12.0).reshape(1, 4, 1, 3)
    ones = jnp.ones((1, 4, 1))
    queries = jnp.eye(4)[jnp.array([0, 0, 0, 0])][None, :, None]
    inputs = (queries, keys, values, ones[..., None], ones)
    _, read = scan(fold_delta, jnp.zeros((1, 1, 4, 3)), inputs, _all_real(1, 4))
    np.testing.assert_allclose(read[0, :, 0], values[0, [0, 0, 2, 2], 0], atol=1e-6)


def test_a_scan_with_scalar_decay_is_masked_attention():
    # Dao and Gu 2024, Transformers are SSMs (Mamba-2): y = (L * C B^T) x, with L the products of the decays.
    draw = np.random.default_rng(0)
    length, width, state = 6, 3, 4
    b, c = draw.standard_normal((2, length, state))
    values, decay = draw.standard_normal((length, width)), draw.uniform(0.5, 1, length)
    products = [
        [np.prod(decay[j + 1 : i + 1]) if j <= i else 0 for j in range(length)] for i in range(length)
    ]
    wanted = (np.array(products) * (c @ b.T)) @ values
    inputs = tuple(jnp.asarray(part)[None, :, None] for part in (values, decay, b, c))
    _, out = scan(fold_scalar_decay, jnp.zeros((1, 1, width, state)), inputs, _all_real(1, length))
    np.testing.assert_allclose(out[0, :, 0], wanted, rtol=1e-4, atol=1e-5)


def test_padding_leaves_a_state_alone():
    past = NoPast((), jnp.array([2, 0], jnp.int32), 4, "float32")
    ones = jnp.ones((2, 4, 1))
    new, _ = scan(lambda held, token: (held + token[0], held), jnp.zeros((2, 1)), (ones,), past)
    assert new.tolist() == [[2], [0]]


def test_greedy_returns_the_largest_logit_and_its_lead():
    tokens, margins = greedy(jnp.array([[0.0, 3.0, 1.0], [2.0, -1.0, 1.5]]))
    assert tokens.tolist() == [1, 0]
    assert margins.tolist() == [2.0, 0.5]
