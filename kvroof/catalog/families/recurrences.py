"""The mixers with a fixed state, each once: its matrices, its small parameters, its state, its scan.

The FLOPs of a scan per token are `2 channels kernel` of the convolution and `STATE_FLOPS` per element of
the state: one decays it, two add the new product, two read it out; a delta rule first reads what the key
holds (two more); Mamba-1 and the gated recurrences make a decay per element. Exponentials, norms and
gates are left out. That is the work of a step; a chunked prefill spends more of it in matrix products.

Ranks share a state by heads (by channels where there are none), as vLLM and SGLang shard it. Where all
heads of a Mamba-2 share one group, every rank holds that group's B and C.
"""

from __future__ import annotations

import math

from kvroof.catalog.config import Config
from kvroof.spec.cache import State
from kvroof.spec.recurrent import Recurrent
from kvroof.spec.weights import Weight, vector

STATE_FLOPS = {
    "mamba1": 6,
    "mamba2": 5,
    "gdn": 7,
    "kda": 7,
    "lightning": 5,
    "mlstm": 5,
    "rglru": 6,
    "rwkv": 6,
    "short_conv": 0,
}


def auto_integer(config: Config, key: str, otherwise: int) -> int:
    """Return a whole number, or `otherwise` where the file leaves it out or says "auto"."""
    if config.data.get(key) == "auto":
        config.text(key)
        return otherwise
    return config.integer(key, otherwise)


def matrix(name: str, rows: int, columns: int, split: int = 1, *, by_rows: bool = False) -> Weight:
    """Return a matrix of a mixer; ranks take columns of it, or rows."""
    return Weight(name=name, shape=(rows, columns), split=split, split_rows=by_rows, role="attention")


def biases(given: bool, **widths: int) -> tuple[Weight, ...]:
    """Return the biases of the named projections, none where the family has none."""
    return tuple(vector(f"{name}.bias", width) for name, width in widths.items() if given)


def mixer(
    kind: str, projections: tuple[Weight, ...], held: State, extras: tuple[Weight, ...], more_flops: int = 0
) -> Recurrent:
    """Return a mixer whose scan costs what the module says, and `more_flops` per token."""
    scan = 2 * held.conv_channels * held.conv_kernel + STATE_FLOPS[kind] * held.recurrent_elements
    return Recurrent(
        kind=kind, projections=projections, held=held, scan_flops=scan + more_flops, extras=extras
    )


def mamba1(
    *,
    hidden: int,
    inner: int,
    state_size: int,
    kernel: int,
    rank: int,
    conv_bias: bool,
    bias: bool,
    norms: bool = False,
) -> Recurrent:
    """Return a selective scan over `inner` channels of `state_size` each; `rank` is the time step's."""
    norm = (vector("dt_layernorm", rank), vector("bc_layernorm", state_size, count=2)) if norms else ()
    return mixer(
        "mamba1",
        (
            matrix("in_proj", hidden, 2 * inner, inner),
            matrix("x_proj", inner, rank + 2 * state_size, inner, by_rows=True),
            matrix("dt_proj", rank, inner, inner),
            matrix("out_proj", inner, hidden, inner, by_rows=True),
        ),
        State(conv_channels=inner, conv_kernel=kernel, recurrent_elements=inner * state_size, split=inner),
        (
            vector("conv1d", inner, kernel, split=inner),
            *biases(conv_bias, conv1d=inner),
            vector("dt_proj.bias", inner, split=inner),
            vector("A_log", inner, state_size, split=inner),
            vector("D", inner, split=inner),
            *biases(bias, in_proj=2 * inner, out_proj=hidden),
            *norm,
        ),
    )


def mamba2(
    *,
    hidden: int,
    heads: int,
    head_dim: int,
    groups: int,
    state_size: int,
    kernel: int,
    conv_bias: bool = True,
    in_bias: bool = False,
    out_bias: bool = False,
    norm: bool = True,
) -> Recurrent:
    """Return a scalar-decay scan: each head holds `head_dim x state_size`, groups share their B and C."""
    inner, shared = heads * head_dim, 2 * groups * state_size
    channels = inner + shared
    split, replicated = (heads, shared) if groups == 1 else (math.gcd(heads, groups), 0)
    into = Weight(
        name="in_proj",
        shape=(hidden, inner + channels + heads),
        split=split,
        replicated=replicated,
        role="attention",
    )
    return mixer(
        "mamba2",
        (into, matrix("out_proj", inner, hidden, split, by_rows=True)),
        State(
            conv_channels=channels,
            conv_kernel=kernel,
            recurrent_elements=heads * head_dim * state_size,
            split=split,
            conv_replicated=replicated,
        ),
        (
            vector("conv1d.x", inner, kernel, split=split),
            vector("conv1d.bc", shared, kernel, split=1 if replicated else split),
            *biases(conv_bias, conv1d=channels),
            vector("heads", heads, count=3, split=split),  # A_log, D, dt_bias
            *((vector("norm", inner, split=split),) if norm else ()),
            *biases(in_bias, in_proj=inner + channels + heads),
            *biases(out_bias, out_proj=hidden),
        ),
    )


def gated_delta(
    inputs: dict[str, str],
    *,
    hidden: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    out: str = "out_proj",
) -> Recurrent:
    """Return a gated delta rule: each value head holds `key_dim x value_dim`.

    `inputs` names the checkpoint's matrices and what each makes: queries, keys, values, their gate z, and
    per head the decay a and the strength b.
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    widths = {"q": keys, "k": keys, "v": values, "z": values, "a": value_heads, "b": value_heads}
    channels, split = 2 * keys + values, math.gcd(key_heads, value_heads)
    into = tuple(
        matrix(name, hidden, sum(widths[part] for part in parts), split) for name, parts in inputs.items()
    )
    return mixer(
        "gdn",
        (*into, matrix(out, values, hidden, split, by_rows=True)),
        State(
            conv_channels=channels,
            conv_kernel=kernel,
            recurrent_elements=value_heads * key_dim * value_dim,
            split=split,
        ),
        (
            vector("conv1d", channels, kernel, split=split),
            vector("heads", value_heads, count=2, split=split),  # A_log, dt_bias
            vector("norm", value_dim),
        ),
    )


def kda(
    *, hidden: int, heads: int, head_dim: int, kernel: int, low_rank: bool, whole_gate: bool = False
) -> Recurrent:
    """Return Kimi's delta rule, which decays per channel.

    Decay and output gate are whole, or `low_rank`, in which case the gate may still be whole.
    """
    width = heads * head_dim
    gates: tuple[Weight, ...] = (
        matrix("f_proj", hidden, width, heads),
        matrix("g_proj", hidden, width, heads),
    )
    if low_rank:
        decay = (matrix("f_a_proj", hidden, head_dim), matrix("f_b_proj", head_dim, width, heads))
        narrow = (matrix("g_a_proj", hidden, head_dim), matrix("g_b_proj", head_dim, width, heads))
        gates = (*decay, *(gates[1:] if whole_gate else narrow))
    inputs = tuple(matrix(f"{part}_proj", hidden, width, heads) for part in "qkv")
    return mixer(
        "kda",
        (
            *inputs,
            *gates,
            matrix("b_proj", hidden, heads, heads),
            matrix("o_proj", width, hidden, heads, by_rows=True),
        ),
        State(
            conv_channels=3 * width,
            conv_kernel=kernel,
            recurrent_elements=width * head_dim,
            split=heads,
        ),
        (
            vector("conv1d", 3 * width, kernel, split=heads),
            vector("dt_bias", width, split=heads),
            vector("A_log", heads, split=heads),
            vector("o_norm", head_dim),
        ),
    )


def lightning(*, hidden: int, heads: int, head_dim: int) -> Recurrent:
    """Return MiniMax's linear attention: each head holds `head_dim x head_dim`, in the model's dtype."""
    width = heads * head_dim
    return mixer(
        "lightning",
        (
            matrix("qkv_proj", hidden, 3 * width, heads),
            matrix("output_gate", hidden, width, heads),
            matrix("out_proj", width, hidden, heads, by_rows=True),
        ),
        State(recurrent_elements=width * head_dim, split=heads, in_model_dtype=True),
        (vector("norm", width, split=heads),),
    )


def rglru(*, hidden: int, width: int, heads: int, kernel: int) -> Recurrent:
    """Return Griffin's gated recurrence over `width` channels, whose two gates are block-diagonal.

    Hugging Face keeps one column fewer than the kernel has, like everyone.
    """
    block = width // heads
    return mixer(
        "rglru",
        (
            matrix("linear_x", hidden, width, heads),
            matrix("linear_y", hidden, width, heads),
            matrix("linear_out", width, hidden, heads, by_rows=True),
        ),
        State(
            conv_channels=width,
            conv_kernel=kernel,
            recurrent_elements=width,
            split=heads,
            dropped_columns=1,
        ),
        (
            vector("gates", heads, block, block, count=2, split=heads),
            vector("channels", width, count=6, split=heads),  # decay, biases of gates, inputs, convolution
            vector("conv_1d", width, kernel, split=heads),
            vector("linear_out.bias", hidden),
        ),
        more_flops=2 * 2 * width * block,
    )


def short_conv(*, hidden: int, kernel: int, bias: bool) -> Recurrent:
    """Return LFM2's gated convolution: its columns are all it remembers."""
    return mixer(
        "short_conv",
        (
            matrix("in_proj", hidden, 3 * hidden, hidden),
            matrix("out_proj", hidden, hidden, hidden, by_rows=True),
        ),
        State(conv_channels=hidden, conv_kernel=kernel, split=hidden),
        (
            vector("conv", hidden, kernel, split=hidden),
            *biases(bias, conv=hidden, in_proj=3 * hidden, out_proj=hidden),
        ),
    )


def mlstm(*, hidden: int, heads: int, keys: int, values: int, bias: bool) -> Recurrent:
    """Return xLSTM's matrix memory: a matrix, a normaliser and a maximum per head, in the model's dtype."""
    key_dim, value_dim = keys // heads, values // heads
    inputs = (("q", keys), ("k", keys), ("v", values), ("ogate_preact", values))
    gates = (("igate_preact", heads), ("fgate_preact", heads))
    return mixer(
        "mlstm",
        (
            *(matrix(name, hidden, width, heads) for name, width in inputs + gates),
            matrix("out_proj", values, hidden, heads, by_rows=True),
        ),
        State(
            recurrent_elements=heads * (key_dim * value_dim + key_dim + 1), split=heads, in_model_dtype=True
        ),
        (
            vector("gates.bias", heads, count=2, split=heads),
            vector("multihead_norm", values, split=heads),
            *biases(bias, multihead_norm=values, out_proj=hidden, **dict(inputs)),
        ),
    )


def rwkv(*, hidden: int, width: int) -> Recurrent:
    """Return RWKV-4's time mixing: the last input of it and of the channel mixing, and three sums."""
    return mixer(
        "rwkv",
        (
            *(matrix(name, hidden, width, width) for name in ("key", "value", "receptance")),
            matrix("output", width, hidden, width, by_rows=True),
        ),
        State(
            conv_channels=2 * hidden,
            conv_kernel=2,
            recurrent_elements=3 * width,
            split=width,
            dropped_columns=1,
        ),
        (vector("time", width, count=2, split=width), vector("time_mix", hidden, count=3)),
    )
