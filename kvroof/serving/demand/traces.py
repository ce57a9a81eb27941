"""Readers of request traces: Mooncake's JSON lines, Azure's and BurstGPT's CSV, and a CSV of one's own.

A file is read line by line, within bounds on its size, its lines and its requests; what cannot be used is
refused with the file, the line and the key. Times are counted from the first arrival.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kvroof.catalog.bounded import open_file
from kvroof.ground.errors import BadInput
from kvroof.serving.demand.lengths import MAX_LENGTH
from kvroof.serving.demand.requests import Request

Format: TypeAlias = Literal["mooncake", "azure", "burstgpt", "csv"]

MAX_BYTES = 2**30
"""Bytes of a trace after decompression."""
MAX_LINE = 2**20
MAX_REQUESTS = 5_000_000
MAX_HASHES = MAX_LENGTH // 16
MAX_SECONDS = 10.0 * 366 * 86_400
"""Ten years: a longer trace has its times in another unit."""
MOONCAKE_BLOCK = 512
"""Tokens that a hash id of Mooncake's traces names. Source: Mooncake (FAST 2025), the traces' README."""

Row: TypeAlias = Mapping[str, Any]


def read_trace(path: str | Path, *, limit: int | None = None) -> tuple[Request, ...]:
    """Return the requests of a trace file, in order of arrival.

    The format is told from the content: JSON lines with `timestamp` (ms), `input_length`, `output_length` and
    `hash_ids` are Mooncake's; CSV by its header: `TIMESTAMP,ContextTokens,GeneratedTokens` is Azure's,
    `Timestamp,Model,Request tokens,Response tokens` BurstGPT's, `arrival_s,input_tokens,output_tokens` one's
    own. A name that ends in `.gz` is decompressed. BurstGPT's failed requests, which have no response tokens,
    are left out; elsewhere a request without output tokens is read as one token.

    Args:
        path: The file.
        limit: Requests to read; None reads all.

    Raises:
        BadInput: A file that cannot be read or used, with its line and key.
    """
    where = str(path)
    if limit is not None and limit < 1:
        raise BadInput(f"{limit} requests", where="--requests")
    try:
        found = _read(Path(path), where, limit)
    except (OSError, EOFError) as error:
        raise BadInput(f"cannot be read: {error.__class__.__name__}", where=where) from error
    if not found:
        raise BadInput("holds no request", where=where)
    return _from_first(found, where)


def _read(path: Path, where: str, limit: int | None) -> list[tuple[int, Request]]:
    with open_file(path, "a trace of requests") as plain:
        file = gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain
        lines = _lines(file, where)
        first = next(lines, None)
        if first is None:
            return []
        number, text = first
        made: Iterator[tuple[int, Request]]
        if text.lstrip().startswith("{"):
            made = _mooncake(where, number, text, lines)
        else:
            made = _csv(where, number, text, lines)
        found = []
        for one in made:
            found.append(one)
            if len(found) == limit:
                break
            if len(found) > MAX_REQUESTS:
                raise BadInput(f"more than {MAX_REQUESTS} requests", where=where, way_out="cut the file")
        return found


def _lines(file: Any, where: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines that are not blank, within the bounds on bytes and on a line."""
    total = number = 0
    while True:
        raw = file.readline(MAX_LINE + 1)
        if not raw:
            return
        number += 1
        total += len(raw)
        if len(raw) > MAX_LINE:
            raise BadInput(f"line {number} is longer than {MAX_LINE} bytes", where=where)
        if total > MAX_BYTES:
            raise BadInput(f"is larger than {MAX_BYTES} bytes", where=where, way_out="cut the file")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise BadInput("is not text", where=f"{where}:{number}") from None
        if text:
            yield number, text


def _mooncake(
    where: str, number: int, text: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Request]]:
    decoder = msgspec.json.Decoder()
    while True:
        place = f"{where}:{number}"
        try:
            row = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadInput(f"is not JSON: {error}", where=place) from None
        if not isinstance(row, dict):
            raise BadInput("is not an object", where=place)
        tokens = _tokens(row, "input_length", place)
        yield (
            number,
            Request(
                arrival_s=_number(row, "timestamp", place) / 1000,
                input_tokens=tokens,
                output_tokens=_tokens(row, "output_length", place),
                block_hashes=_hashes(row, tokens, place),
                hash_block_size=MOONCAKE_BLOCK,
            ),
        )
        following = next(lines, None)
        if following is None:
            return
        number, text = following


def _hashes(row: Row, tokens: int, place: str) -> tuple[int, ...] | None:
    ids = row.get("hash_ids")
    if ids is None:
        return None
    whole = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    if not whole or len(ids) > MAX_HASHES:
        raise BadInput("is not a list of whole numbers", where=place, key="hash_ids")
    if len(ids) < tokens // MOONCAKE_BLOCK:
        reason = f"{len(ids)} ids for {tokens} tokens in blocks of {MOONCAKE_BLOCK}"
        raise BadInput(reason, where=place, key="hash_ids")
    return tuple(ids)


def _csv(
    where: str, number: int, header: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Request]]:
    names = tuple(name.strip() for name in _cells(header, f"{where}:{number}"))
    columns = next((c for c in _COLUMNS if set(c[:3]) <= set(names)), None)
    if columns is None:
        reason = f"columns {', '.join(names)[:80]} are those of no known trace"
        raise BadInput(reason, where=where, way_out="name them arrival_s,input_tokens,output_tokens")
    when, prompt, output, clock = columns
    for line, text in lines:
        place = f"{where}:{line}"
        cells = _cells(text, place)
        if len(cells) != len(names):
            raise BadInput(f"{len(cells)} cells under {len(names)} columns", where=place)
        row = dict(zip(names, cells, strict=True))
        if output == "Response tokens" and not _number(row, output, place):
            continue
        yield (
            line,
            Request(
                arrival_s=clock(row, when, place),
                input_tokens=_tokens(row, prompt, place),
                output_tokens=_tokens(row, output, place),
            ),
        )


def _cells(text: str, place: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except (csv.Error, StopIteration):
        raise BadInput("is not a line of CSV", where=place) from None


def _number(row: Row, key: str, place: str) -> float:
    """Return a finite number that is not negative."""
    given = row.get(key)
    try:
        value = math.nan if given is None or isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        shown = "is missing" if given is None else f"{str(given)[:40]!r} is not a number from 0 on"
        raise BadInput(shown, where=place, key=key)
    return value


def _tokens(row: Row, key: str, place: str) -> int:
    value = _number(row, key, place)
    if value != int(value) or not 0 <= value <= MAX_LENGTH:
        raise BadInput(f"{value:g} is not a number of tokens up to {MAX_LENGTH}", where=place, key=key)
    return max(int(value), 1)


def _date(row: Row, key: str, place: str) -> float:
    """Return the seconds of a date and time; more than six digits after the second are cut."""
    text = str(row.get(key, "")).strip()
    head, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    text = f"{head}.{digits[:6]:0<6}{rest[len(digits) :]}" if point else text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text[:40]!r} is not a date and time", where=place, key=key) from None
    return moment.timestamp() if moment.tzinfo else (moment - datetime(1970, 1, 1)).total_seconds()


Clock: TypeAlias = Callable[[Row, str, str], float]
_COLUMNS: tuple[tuple[str, str, str, Clock], ...] = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date),
    ("Timestamp", "Request tokens", "Response tokens", _number),
    ("arrival_s", "input_tokens", "output_tokens", _number),
)


def _from_first(found: list[tuple[int, Request]], where: str) -> tuple[Request, ...]:
    """Return the requests with times from the first arrival on.

    Raises:
        BadInput: A request that arrives before the one above it, or a span of more than ten years.
    """
    start = last = found[0][1].arrival_s
    made = []
    for number, request in found:
        if request.arrival_s < last:
            reason = f"arrives {last - request.arrival_s:g} s before the request above it"
            raise BadInput(reason, where=f"{where}:{number}", key="arrival", way_out="sort by arrival")
        last = request.arrival_s
        if last - start > MAX_SECONDS:
            raise BadInput("is ten years after the first", where=f"{where}:{number}", key="arrival")
        made.append(
            Request(
                arrival_s=last - start,
                input_tokens=request.input_tokens,
                output_tokens=request.output_tokens,
                block_hashes=request.block_hashes,
                hash_block_size=request.hash_block_size,
            )
        )
    return tuple(made)
