"""`kvroof fit`: the memory ledger against a budget."""

from __future__ import annotations

import sys

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import emit
from kvroof.ground.errors import BadInput
from kvroof.memory.allocators import parse_allocator
from kvroof.memory.ledger import fit
from kvroof.spec.parallel import Layout
from kvroof.spec.params import parse_formats
from kvroof.spec.precision import parse_kv_format


@click.command("fit")
@click.argument("model")
@click.argument("hw", required=False)
@click.option("--tokens", default=8192, show_default=True, help="Cached tokens of each sequence.")
@click.option("--seqs", default=1, show_default=True, help="Sequences.")
@click.option("--capacity", type=options.Size(), help="Memory of one device, instead of HW's, e.g. 22GiB.")
@click.option("--weights", type=options.Size(), help="Weights on one device, instead of the count.")
@options.encoder_tokens
@options.utilization
@options.reserve
@options.allocator
@options.max_model_len
@options.block_size
@options.kv_dtype
@options.weights_dtype
@options.parallel
@options.calibration
@options.ignore_key
@options.explain
@options.json_output
def command(
    model: str,
    hw: str | None,
    tokens: int,
    seqs: int,
    encoder_tokens: int,
    capacity: int | None,
    weights: int | None,
    utilization: float,
    reserve: int,
    allocator: str,
    max_model_len: int | None,
    block_size: int,
    kv_dtype: str,
    weights_dtype: str,
    tp: int,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Does it fit, by how much, how far it goes, and what would make it fit. Exit 1 when it does not.

    \b
    kvroof fit llama-3.1-8b h100-sxm --tokens 32768 --seqs 16
    kvroof fit config.json --capacity 22GiB --weights 13.04GiB --reserve 3GiB --utilization 1
    """
    machine = load_hardware(hw) if hw is not None else None
    if machine is None and capacity is None:
        raise BadInput("no machine and no capacity", where="fit", way_out="name a HW, or add --capacity 80GB")
    arch = load_model(model, ignore_keys=ignore_keys)
    ledger = fit(
        arch,
        capacity if capacity is not None else machine.capacity_bytes if machine else 0,
        tokens=tokens,
        seqs=seqs,
        utilization=utilization,
        reserve_bytes=reserve,
        weights_bytes=weights,
        formats=parse_formats(weights_dtype, arch),
        kv_format=parse_kv_format(kv_dtype, arch),
        allocator=parse_allocator(allocator, block_size, max_model_len, arch.max_position_embeddings),
        layout=Layout(tp=tp),
        encoder_tokens=encoder_tokens,
    )
    from kvroof.view.memory import fit_view

    emit(ledger, as_json, lambda: fit_view(ledger, machine if capacity is None else None, explain))
    sys.exit(0 if ledger.fits else 1)
