"""`kvroof kv`: what the KV cache and the state of a batch take."""

from __future__ import annotations

import click

from kvroof.catalog.models import load_model
from kvroof.cli import options
from kvroof.cli.output import emit
from kvroof.memory.allocators import parse_allocator
from kvroof.memory.kv import kv
from kvroof.spec.parallel import Layout
from kvroof.spec.params import parse_formats
from kvroof.spec.precision import parse_kv_format


@click.command("kv")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--tokens", default=8192, show_default=True, help="Cached tokens of each sequence.")
@click.option("--seqs", default=1, show_default=True, help="Sequences.")
@click.option("--lengths", type=options.Lengths(), help="Cached tokens of each sequence, e.g. 100,2048,33.")
@click.option(
    "--shared-prefix", default=0, show_default=True, help="Leading tokens that all sequences share."
)
@options.encoder_tokens
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
    models: tuple[str, ...],
    tokens: int,
    seqs: int,
    lengths: tuple[int, ...] | None,
    shared_prefix: int,
    encoder_tokens: int,
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
    """Bytes of the KV cache: payload, allocated, per token, per rank.

    \b
    kvroof kv llama-3.1-8b deepseek-v3 --tokens 32768 --seqs 8
    kvroof kv path/to/config.json --lengths 100,2048,33 --kv-dtype fp8
    """
    reports = []
    for name in models:
        model = load_model(name, ignore_keys=ignore_keys)
        parse_formats(weights_dtype, model)
        policy = parse_allocator(allocator, block_size, max_model_len, model.max_position_embeddings)
        reports.append(
            kv(
                model,
                tokens=tokens,
                seqs=seqs,
                lengths=lengths,
                shared_prefix=shared_prefix,
                encoder_tokens=encoder_tokens,
                kv_format=parse_kv_format(kv_dtype, model),
                allocator=policy,
                layout=Layout(tp=tp),
            )
        )
    from kvroof.view.memory import kv_view

    emit(reports, as_json, lambda: kv_view(reports, explain))
