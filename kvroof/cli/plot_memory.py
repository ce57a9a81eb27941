"""Figures of `kvroof plot` that count bytes: footprint, memory, capacity, blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.plot import drawn
from kvroof.cli.quantities import COUNTS, TIMES
from kvroof.cli.sweeps import calibration_of, capacity_ledgers, equal_times, footprint_curve
from kvroof.ground.errors import BadInput
from kvroof.memory.blocks import Blocks
from kvroof.memory.ledger import fit
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.params import parse_formats
from kvroof.spec.precision import parse_kv_format

if TYPE_CHECKING:
    from kvroof.view.theme import Figure

LONGEST = 131_072


@click.command("footprint")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.shown("--seqs", 1, "Sequences.")
@options.shown("--tokens", 1_048_576, "The longest context shown.")
@options.kv_dtype
@options.ignore_key
@drawn
def draw_footprint(
    models: tuple[str, ...], seqs: int, tokens: int, kv_dtype: str, ignore_keys: tuple[str, ...]
) -> Figure:
    """KV cache and state against context, a line per model.

    \b
    kvroof plot footprint llama-2-7b gemma-3-27b deepseek-v3 --out footprint.html
    """
    from kvroof.view.figures.footprint import footprint

    loaded = [load_model(name, ignore_keys=ignore_keys) for name in models]
    return footprint([footprint_curve(m, parse_kv_format(kv_dtype, m), seqs, tokens) for m in loaded])


@click.command("memory")
@click.argument("model")
@click.argument("hw")
@options.cached
@options.utilization
@options.reserve
@options.kv_dtype
@options.weights_dtype
@options.parallel
@options.ignore_key
@drawn
def draw_memory(
    model: str,
    hw: str,
    tokens: int,
    seqs: int,
    utilization: float,
    reserve: int,
    kv_dtype: str,
    weights_dtype: str,
    layout: Layout,
    ignore_keys: tuple[str, ...],
) -> Figure:
    """A device's memory, from its capacity down to what is left.

    \b
    kvroof plot memory llama-3.1-70b h100-sxm --tp 2 --seqs 4 --out memory.html
    """
    from kvroof.view.figures.memory import memory_waterfall

    arch, machine = load_model(model, ignore_keys=ignore_keys), load_hardware(hw)
    check_layout(arch, layout)
    ledger = fit(
        arch,
        machine.capacity_bytes,
        tokens=tokens,
        seqs=seqs,
        utilization=utilization,
        reserve_bytes=reserve,
        formats=parse_formats(weights_dtype, arch),
        kv_format=parse_kv_format(kv_dtype, arch),
        layout=layout,
    )
    return memory_waterfall(ledger, machine.name)


@click.command("capacity")
@click.argument("model")
@click.argument("hw")
@deployment
@options.shown("--tokens", LONGEST, "The longest context shown.")
@click.option("--tpot", type=TIMES, default=(), help="Times per token to draw, e.g. 20ms,50ms.")
@options.utilization
@options.reserve
@drawn
def draw_capacity(
    model: str,
    hw: str,
    deployed: Deployed,
    tokens: int,
    tpot: tuple[float, ...],
    utilization: float,
    reserve: int,
) -> Figure:
    """Sequences that fit against their length, with lines of equal time per token.

    \b
    kvroof plot capacity llama-3.1-8b h100-sxm --tpot 20ms,50ms --out capacity.html
    """
    from kvroof.view.figures.capacity import capacity_frontier

    plan = deployed.plan(model, hw)
    ledgers = capacity_ledgers(plan, tokens, utilization, reserve)
    lines = equal_times(plan, ledgers, tpot)
    return capacity_frontier(ledgers, lines, plan.hardware.name, calibration_of(plan))


@click.command("blocks")
@click.option("--lengths", type=COUNTS, default=(100, 72, 40), help="Tokens of each sequence; 100,72,40.")
@options.shown("--shared-prefix", 32, "Leading tokens that all share.")
@options.block_size
@options.shown("--num-blocks", 32, "Blocks of the pool.")
@drawn
def draw_blocks(lengths: tuple[int, ...], shared_prefix: int, block_size: int, num_blocks: int) -> Figure:
    """Block tables of some sequences, and the pool of blocks they point into.

    \b
    kvroof plot blocks --lengths 100,72,40 --shared-prefix 32 --out blocks.html
    """
    from kvroof.view.figures.blocks import MOST_BLOCKS, block_tables

    if num_blocks > MOST_BLOCKS:
        raise BadInput(
            f"{num_blocks} are more than the {MOST_BLOCKS} that can be drawn", where="--num-blocks"
        )
    if min(lengths, default=0) < max(shared_prefix, 1) or shared_prefix < 0:
        raise BadInput(f"{shared_prefix} shared tokens of the shortest sequence", where="--shared-prefix")
    pool, whole = Blocks(num_blocks, block_size), shared_prefix // block_size
    for seq, length in enumerate(lengths):
        pool.start(seq, pool.block_table(0)[:whole] if seq else ())
        if pool.append(seq, length - pool.tokens(seq)) is None:
            raise BadInput(
                f"{num_blocks} blocks do not hold sequence {seq}", where="--num-blocks", way_out="give more"
            )
    asked = f"sequences of {', '.join(f'{n:,}' for n in lengths)} tokens"
    shared = (
        f", the first {shared_prefix:,} the same, of which whole blocks are shared" if shared_prefix else ""
    )
    return block_tables(pool, asked + shared)
