"""`kvroof kv`: what the KV cache and the state of a batch take."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from kvroof.catalog.bounded import read_bytes, read_most
from kvroof.catalog.models import load_model
from kvroof.cli import options
from kvroof.cli.engine_options import Flags, Stored, chosen_storage, engine_options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import COUNTS, SIZE
from kvroof.ground.errors import BadInput
from kvroof.ground.units import MIB
from kvroof.memory.engines.explain import explain_log
from kvroof.memory.engines.logs import read_log
from kvroof.memory.engines.prediction import ExplainedLine, Served
from kvroof.memory.kv import kv
from kvroof.spec.architecture import Architecture
from kvroof.spec.parallel import Layout
from kvroof.spec.params import parse_formats

MAX_LOG_BYTES = 16 * MIB


@click.command("kv")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@options.cached
@click.option("--lengths", type=COUNTS, help="Cached tokens of each sequence, e.g. 100,2048,33.")
@options.shown("--shared-prefix", 0, "Leading tokens that all sequences share.")
@options.encoder_tokens
@click.option("--available", type=SIZE, help="What an engine has for its cache: predicts its log.")
@click.option("--log", "log_file", metavar="FILE", help="Explain an engine's log, - for standard input.")
@engine_options
@options.kv_dtype
@options.weights_dtype
@options.served_parallel
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
    available: int | None,
    log_file: str | None,
    flags: Flags,
    kv_dtype: str,
    weights_dtype: str,
    layout: Layout,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Bytes of the KV cache: payload, allocated, per token, per rank.

    \b
    kvroof kv llama-3.1-8b deepseek-v3 --tokens 32768 --seqs 8
    kvroof kv path/to/config.json --lengths 100,2048,33 --kv-dtype fp8
    kvroof kv gpt-oss-120b --engine vllm --available 5.38GiB --max-model-len 131072
    """
    if lengths is not None and not (options.left_out("tokens") and options.left_out("seqs")):
        raise BadInput(
            "the lengths say how long and how many",
            where="--lengths",
            way_out="leave --tokens and --seqs out",
        )
    log = read_log(_read(log_file)) if log_file is not None else None
    if log is not None and len(models) > 1:
        raise BadInput("a log is of one model", where="--log", way_out="name one MODEL")
    if log is not None:
        tp = log.number("tp")
        layout = replace(layout, tp=tp) if tp and options.left_out("tp") else layout
        kv_dtype = log.settings.get("kv_dtype", kv_dtype) if kv_dtype == "auto" else kv_dtype
    arches = [load_model(name, ignore_keys=ignore_keys) for name in models]
    for arch in arches:
        parse_formats(weights_dtype, arch)
    named = None if log is None else log.printed_by
    stored = [chosen_storage(flags, arch, layout, kv_dtype, named) for arch in arches]
    reports = [
        kv(
            arch,
            tokens=how.tokens(tokens),
            seqs=seqs,
            lengths=lengths,
            shared_prefix=shared_prefix,
            encoder_tokens=encoder_tokens,
            available_bytes=available,
            **how._asdict(),
        )
        for arch, how in zip(arches, stored, strict=True)
    ]
    lines: tuple[ExplainedLine, ...] = ()
    if log is not None:
        served = _served(arches[0], stored[0], available, None if options.left_out("tokens") else tokens)
        lines = explain_log(served, log)
    if as_json:
        print_json(reports if log is None else [plain(report) | {"log": plain(lines)} for report in reports])
    else:
        from kvroof.view.memory import kv_view, log_view

        print_view(kv_view(reports, explain))
        print_view(log_view(lines) if lines else ())


def _served(model: Architecture, stored: Stored, available: int | None, context: int | None) -> Served:
    """Return what a log is held against."""
    assert stored.allocator.engine is not None, "a log names its engine"
    return Served(
        model=model,
        engine=stored.allocator.engine,
        kv_format=stored.kv_format,
        state_format=stored.state_format,
        tp=stored.layout.tp,
        available_bytes=available,
        context=context,
    )


def _read(name: str) -> str:
    """Return the text of a log, or of standard input for `-`.

    Raises:
        BadInput: A file that cannot be read, or one that is too large.
    """
    what, where = "the lines about the KV cache, e.g. by grep", f"--log {name}"
    if name == "-":
        data = read_most(sys.stdin.buffer, MAX_LOG_BYTES, what, where)
    else:
        data = read_bytes(Path(name), MAX_LOG_BYTES, what, where)
    return data.decode("utf-8", "replace")
