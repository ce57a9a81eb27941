"""`kvroof compare`: models side by side."""

from __future__ import annotations

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import print_json, print_view
from kvroof.serving.comparison import compare
from kvroof.spec.parallel import Layout


@click.command("compare")
@click.argument("models", nargs=-1, required=True, metavar="MODEL MODEL...")
@click.option("--hw", help="Machine on which one decode step is timed.")
@options.cached
@options.encoder_tokens
@options.utilization
@options.kv_dtype
@options.weights_dtype
@options.parallel
@options.calibration
@options.ignore_key
@options.json_output
def command(
    models: tuple[str, ...],
    hw: str | None,
    tokens: int,
    seqs: int,
    encoder_tokens: int,
    utilization: float,
    kv_dtype: str,
    weights_dtype: str,
    layout: Layout,
    ignore_keys: tuple[str, ...],
    as_json: bool,
) -> None:
    """Footprint and decode-bound latency of several models.

    \b
    kvroof compare llama-3.1-8b gemma-3-27b deepseek-v2-lite --hw h100-sxm
    """
    rows = compare(
        [load_model(name, ignore_keys=ignore_keys) for name in models],
        load_hardware(hw) if hw is not None else None,
        tokens=tokens,
        seqs=seqs,
        kv_dtype=kv_dtype,
        weights_dtype=weights_dtype,
        layout=layout,
        utilization=utilization,
        encoder_tokens=encoder_tokens,
    )
    if as_json:
        print_json(rows)
    else:
        from kvroof.view.speed import compare_view

        print_view(compare_view(rows, hw, tokens, seqs))
