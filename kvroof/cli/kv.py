"""`kvroof kv`: what the KV cache and the state of a batch take."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from kvroof.catalog.models import load_model
from kvroof.cli import options
from kvroof.cli.engine_options import chosen_allocator, chosen_formats, engine_options, with_context
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import COUNTS, SIZE
from kvroof.ground.errors import BadInput
from kvroof.ground.units import MIB
from kvroof.memory.engines.explain import ExplainedLine, Served, explain_log
from kvroof.memory.engines.logs import read_log
from kvroof.memory.kv import KVReport, kv
from kvroof.spec.params import parse_formats

MAX_LOG_BYTES = 16 * MIB


@click.command("kv")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--tokens", default=8192, show_default=True, help="Cached tokens of each sequence.")
@click.option("--seqs", default=1, show_default=True, help="Sequences.")
@click.option("--lengths", type=COUNTS, help="Cached tokens of each sequence, e.g. 100,2048,33.")
@click.option(
    "--shared-prefix", default=0, show_default=True, help="Leading tokens that all sequences share."
)
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
    kv_dtype: str,
    weights_dtype: str,
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
    layout = options.chosen_layout()
    log = read_log(_read(log_file)) if log_file is not None else None
    if log is not None and len(models) > 1:
        raise BadInput("a log is of one model", where="--log", way_out="name one MODEL")
    if log is not None:
        tp = log.number("tp")
        layout = replace(layout, tp=tp) if tp and options.left_out("tp") else layout
        kv_dtype = log.settings.get("kv_dtype", kv_dtype) if kv_dtype == "auto" else kv_dtype
    reports: list[KVReport] = []
    lines: tuple[ExplainedLine, ...] = ()
    for name in models:
        model = load_model(name, ignore_keys=ignore_keys)
        parse_formats(weights_dtype, model)
        allocator = chosen_allocator(model, log.engine if log is not None else None)
        kv_format, state_format = chosen_formats(model, allocator, kv_dtype)
        reports.append(
            kv(
                model,
                tokens=tokens,
                seqs=seqs,
                lengths=lengths,
                shared_prefix=shared_prefix,
                encoder_tokens=encoder_tokens,
                kv_format=kv_format,
                state_format=state_format,
                allocator=allocator,
                layout=with_context(layout, allocator),
                available_bytes=available,
            )
        )
        if log is not None:
            if allocator.engine is None:
                raise BadInput("only an engine has a log", where="--log", way_out="add --engine vllm")
            served = Served(
                model=model,
                engine=allocator.engine,
                kv_format=kv_format,
                state_format=state_format,
                tp=layout.tp,
                available_bytes=available,
                context=None if options.left_out("tokens") else tokens,
            )
            lines = explain_log(served, log)
    if as_json:
        print_json(reports if log is None else [plain(report) | {"log": plain(lines)} for report in reports])
    else:
        from kvroof.view.memory import kv_view, log_view

        print_view(kv_view(reports, explain))
        print_view(log_view(lines) if lines else ())


def _read(name: str) -> str:
    """Return the text of a log, or of standard input for `-`.

    Raises:
        BadInput: A file that cannot be read, or one that is too large.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_LOG_BYTES + 1)
        else:
            if not Path(name).is_file():
                raise BadInput("no such file, or not a regular one", where=f"--log {name}")
            with Path(name).open("rb") as file:
                data = file.read(MAX_LOG_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise BadInput(reason, where=f"--log {name}") from None
    if len(data) > MAX_LOG_BYTES:
        raise BadInput(
            "more than 16 MiB",
            where=f"--log {name}",
            way_out="give the lines about the KV cache, e.g. by grep",
        )
    return data.decode("utf-8", "replace")
