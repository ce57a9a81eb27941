"""Small engines for the tests: few shapes, so that each kind of model is compiled twice and no more."""

from dataclasses import replace

import jax
import numpy as np

from kvroof import load_model
from kvroof.engine.cache import plan_cache
from kvroof.engine.decoder import new_decoder, run_whole
from kvroof.engine.executor import Settings
from kvroof.engine.requests import Request
from kvroof.engine.runner import Runner
from kvroof.engine.scaling import Scale, scaled_down
from kvroof.schedule.policies import Policy
from kvroof.spec.architecture import stack
from kvroof.spec.reach import Chunked

SCALE = Scale(hidden_size=32, vocab_size=64, window=10, num_layers=1)
SETTINGS = Settings(
    block_size=4,
    num_blocks=19,
    host_blocks=40,
    snapshots=4,
    snapshot_tokens=8,
    dtype="float64",
    fewest_seqs=4,
    fewest_queries=32,
    fewest_blocks=8,
)
"""Every step is of 4 rows, of 1 or 32 tokens, with 8 blocks each. Windows of 10 end within a block."""


def small(name):
    """Return a catalog model, scaled down; `with chunks`, a chunked layer is put before its own (Llama-4)."""
    plain = name.removesuffix(" with chunks")
    model = scaled_down(load_model(plain), SCALE)
    if plain == name:
        return model
    (group,) = model.layers
    local = replace(group.layer.mixers[0], reach=Chunked(size=SCALE.window))
    layers, order = stack([replace(group.layer, mixers=(local,)), group.layer])
    return replace(model, layers=layers, order=order)


def prompts_with_prefix(tails, prefix=16, seed=1):
    """Return prompts that begin with the same `prefix` tokens and end in `tails` of their own."""
    draw = np.random.default_rng(seed)
    common = draw.integers(0, SCALE.vocab_size, prefix).tolist()
    return [tuple(common + draw.integers(0, SCALE.vocab_size, tail).tolist()) for tail in tails]


def ask(prompts, output_tokens):
    """Return a request per prompt, numbered from 0."""
    return [
        Request(request=number, tokens=prompt, output_tokens=output_tokens)
        for number, prompt in enumerate(prompts)
    ]


def runner(model, policy=None, settings=SETTINGS, **options):
    """Return an engine whose cache is full of NaN and hands its blocks out in a random order."""
    order = options.pop("order", np.random.default_rng(5).permutation(settings.num_blocks).tolist())
    policy = policy or Policy(name="continuous", max_num_seqs=4)
    made = Runner(model, policy, settings, order=order, **options)
    made.executor.cache = jax.tree_util.tree_map(
        lambda leaf: jax.device_put(np.full(leaf.shape, np.nan, leaf.dtype)), made.executor.cache
    )
    return made


def outputs(engine):
    """Return what each request generated."""
    return [request.output for request in engine.report().requests]


def whole_outputs(model, prompts, output_tokens, dtype="float64", longest=64):
    """Return the tokens and margins of greedy decoding in which nothing is cached or paged."""
    plan = plan_cache(model, SETTINGS.block_size)
    weights = new_decoder(model, plan, dtype, 0)
    rows, margins = [list(prompt) for prompt in prompts], []
    for _ in range(output_tokens):
        tokens = np.zeros((len(rows), longest), np.int32)
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = row
        lens = np.array([len(row) for row in rows], np.int32)
        sampled = run_whole(weights.graph, weights.state, plan, tokens, lens)
        for row, token in zip(rows, np.asarray(sampled.tokens), strict=True):
            row.append(int(token))
        margins.append(np.asarray(sampled.margins))
    tokens = [tuple(row[len(prompt) :]) for row, prompt in zip(rows, prompts, strict=True)]
    return tokens, np.stack(margins, axis=1)


def with_dtype(dtype, settings=SETTINGS):
    """Return the settings in another dtype."""
    return replace(settings, dtype=dtype)
