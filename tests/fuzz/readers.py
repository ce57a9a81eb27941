"""Everything that reads what a stranger may have written, each as one function of bytes.

A reader gets a good file to start from, changed as the bytes decide, or the bytes as they are. It may answer,
or raise a `KvroofError`, which becomes one line and exit code 2. Anything else is a fault.
"""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from click.testing import CliRunner

import kvroof
from kvroof.calibration.load import load_calibration
from kvroof.calibration.served import read_points
from kvroof.calibration.sources import read_csv
from kvroof.catalog.checkpoint import checkpoint_bytes
from kvroof.catalog.names import data_folder
from kvroof.catalog.profiles import load_hardware
from kvroof.cli.main import main
from kvroof.ground.errors import KvroofError
from kvroof.memory.engines.logs import read_log
from kvroof.serving.demand.traces import read_trace
from kvroof.spec.params import params_total
from tests.fuzz.mutation import Choices, mutated, toml

Read = Callable[[bytes, Path], None]


@cache
def _configs() -> tuple[dict[str, object], ...]:
    """Return configs of every kind of model: the catalog's, and the small ones counted by transformers."""
    folder = data_folder("models")
    own = [json.loads(path.read_text())["config"] for path in sorted(folder.glob("*.json"))]
    counted = json.loads((folder / "counted" / "transformers.json").read_text())
    return tuple(own + [record["config"] for record in counted])


def _start(choices: Choices, seeds: int) -> tuple[int, int]:
    """Return which good file is taken, and how often it is changed; never for the bytes as they are."""
    return choices.below(seeds), choices.below(5)


def read_config(data: bytes, folder: Path) -> None:
    """A model's `config.json`: read, counted, and its cache at a short and a long context."""
    choices = Choices(data)
    if choices.below(4) == 0:
        content = choices.rest()
    else:
        which, times = _start(choices, len(_configs()))
        content = json.dumps(mutated(_configs()[which], choices, times)).encode()
    path = folder / "config.json"
    path.write_bytes(content)
    model = kvroof.load_model(path)
    assert params_total(model) > 0
    for tokens in (1, 100_000):
        assert kvroof.kv(model, tokens=tokens).payload_bytes >= 0


_SAFETENSORS = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [12, 16]},
}


def read_safetensors(data: bytes, folder: Path) -> None:
    """The header of a safetensors file."""
    choices = Choices(data)
    if choices.below(4) == 0:
        content = choices.rest()
    else:
        header = json.dumps(mutated(_SAFETENSORS, choices, choices.below(5))).encode()
        length = len(header) + (choices.below(65536) - 32768 if choices.below(6) == 0 else 0)
        content = max(length, 0).to_bytes(8, "little") + header + bytes(16)
    (folder / "model.safetensors").write_bytes(content)
    assert (checkpoint_bytes(folder) or 0) >= 0


@cache
def _gguf() -> bytes:
    """Return a small whole GGUF file."""
    import tempfile

    import numpy as np
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_uint32("llama.block_count", 2)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def read_gguf(data: bytes, folder: Path) -> None:
    """The header of a GGUF file, some of its bytes changed, or cut short."""
    choices = Choices(data)
    if choices.below(4) == 0:
        content = b"GGUF" + choices.rest()
    else:
        content = bytearray(_gguf())
        for _ in range(choices.below(6)):
            content[choices.below(min(len(content), 400))] = choices.below(256)
        content = bytes(content[: choices.below(len(content))] if choices.below(6) == 0 else content)
    (folder / "model.gguf").write_bytes(content)
    assert (checkpoint_bytes(folder) or 0) >= 0


@cache
def _profiles(pattern: str) -> tuple[dict[str, object], ...]:
    return tuple(tomllib.loads(path.read_text()) for path in sorted(data_folder("hardware").glob(pattern)))


def _toml_file(data: bytes, path: Path, seeds: tuple[dict[str, object], ...]) -> Path:
    choices = Choices(data)
    if choices.below(4) == 0:
        path.write_bytes(choices.rest())
    else:
        which, times = _start(choices, len(seeds))
        changed = mutated(seeds[which], choices, times)
        path.write_text(toml(changed if isinstance(changed, dict) else {}), "utf-8", errors="replace")
    return path


def read_hardware(data: bytes, folder: Path) -> None:
    """A machine's profile, and a bound on it."""
    machine = load_hardware(str(_toml_file(data, folder / "machine.toml", _profiles("*.toml"))))
    found = kvroof.estimate(kvroof.Plan.of("llama-3.1-8b", machine), batch=2, isl=16, osl=4)
    assert found.tpot_s > 0


def read_calibration(data: bytes, folder: Path) -> None:
    """A calibration profile, and a time with it."""
    path = _toml_file(data, folder / "mine.toml", _profiles("calibrations/*.toml"))
    efficiency = load_calibration(str(path), "h100-sxm")
    assert efficiency is not None
    plan = kvroof.Plan.of("llama-3.1-8b", "h100-sxm", efficiency=efficiency)
    assert kvroof.estimate(plan, batch=2, isl=16, osl=4).tpot_s > 0


_TRACES = (
    b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 27, "input_length": 513, "output_length": 9, "hash_ids": [1, 3]}\n',
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    b"2023-11-16 18:15:50.9951690,396,109\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n"
    b"45,ChatGPT,1087,230,1317,Conversation log\n",
    b"arrival_s,input_tokens,output_tokens\n0.5,100,10\n1.5,50,2\n",
)
_POINTS = (
    b"model,hw,framework,tp,isl,osl,concurrency,kv_dtype,ttft_ms,tpot_ms\n"
    b"llama-3.1-8b,h100-sxm,vllm,1,1024,256,1,auto,40,8.0\n",
    b'{"model_id": "meta-llama/Llama-3.1-8B", "completed": 80, "max_concurrency": 8,'
    b' "total_input_tokens": 80000, "total_output_tokens": 20000, "mean_ttft_ms": 60, "mean_tpot_ms": 9}',
)
_LOGS = (
    b"INFO Available KV cache memory: 3.81 GiB\nINFO GPU KV cache size: 31,232 tokens\n"
    b"INFO Maximum concurrency for 20,000 tokens per request: 1.56x\n",
    b"KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB\n",
    b"llama_kv_cache: size = 2560.00 MiB (131072 cells, 5 layers, 1/1 seqs), K (f16): 1280.00 MiB, "
    b"V (f16): 1280.00 MiB\n",
    b"[TensorRT-LLM][INFO] [MemUsageChange] Allocated 12.34 GiB for max tokens in paged KV cache (100000).\n",
)
_WORDS = (
    b"-1",
    b"1e400",
    b"nan",
    b"9" * 400,
    b"",
    b"\xff",
    b"\x00",
    b'"',
    b",,,",
    b"\n\n",
    b"{",
    b"[" * 200,
    b"\xe2\x80\xae",
)


def _text(data: bytes, seeds: tuple[bytes, ...]) -> bytes:
    """Return a good text with words put in, cut out or doubled, or the bytes as they are."""
    choices = Choices(data)
    if choices.below(4) == 0:
        return choices.rest()
    content = seeds[choices.below(len(seeds))]
    for _ in range(choices.below(5)):
        low, high = sorted((choices.below(len(content) + 1), choices.below(len(content) + 1)))
        high = min(high, low + choices.below(24))
        match choices.below(4):
            case 0:
                content = content[:low] + content[high:]
            case 1:
                content = content[:high] + content[low:high] * (1 + choices.below(200)) + content[high:]
            case _:
                content = content[:low] + _WORDS[choices.below(len(_WORDS))] + content[high:]
    return content


def read_a_trace(data: bytes, folder: Path) -> None:
    """A trace of requests, of any of the four kinds."""
    path = folder / ("trace.jsonl" if data[:1] < b"\x80" else "trace.csv")
    path.write_bytes(_text(data, _TRACES))
    requests = read_trace(path)
    assert all(r.input_tokens > 0 and r.arrival_s >= 0 for r in requests)


def read_served_points(data: bytes, folder: Path) -> None:
    """Measured points of one's own deployment."""
    path = folder / ("points.json" if data[:1] < b"\x80" else "points.csv")
    path.write_bytes(_text(data, _POINTS))
    for point in read_points(path).points:
        assert point.concurrency > 0


def read_kernel_table(data: bytes, folder: Path) -> None:
    """A CSV of measured kernels."""
    path = folder / "table.csv"
    path.write_bytes(_text(data, (b"batch_size,latency\n1,0.5\n2,0.75\n",)))
    columns = read_csv(path, ("batch_size", "latency"))
    assert {len(column) for column in columns.values()} <= {len(columns["latency"])}


def read_an_engine_log(data: bytes, folder: Path) -> None:
    """An engine's log, explained."""
    path = folder / "engine.log"
    path.write_bytes(_text(data, _LOGS))
    read_log(path.read_bytes().decode("utf-8", errors="replace"))
    _run(["kv", "llama-3.1-8b", "--log", str(path), "--json"])


_COMMANDS = tuple(
    line.encode()
    for line in (
        "kv llama-3.1-8b --tokens 8192 --seqs 4 --json",
        "kv deepseek-v3 --kv-dtype fp8 --tp 8 --json",
        "kv gemma-3-27b --engine vllm --available 5GiB --max-model-len 4096 --json",
        "fit llama-3.1-8b 22GiB --seqs 4 --tokens 2048 --json",
        "fit qwen3-30b-a3b h100-sxm --tp 2 --utilization 0.9 --reserve 1GiB --json",
        "estimate llama-3.1-8b h100-sxm --batch 4 --isl 128 --osl 16 --json",
        "estimate deepseek-v3 h200-sxm --tp 8 --ep 8 --calibration none --json",
        "compare llama-3.1-8b gpt-oss-20b --hw h100-sxm --json",
        "show b200-sxm --json",
        "list models --json",
    )
)


def read_arguments(data: bytes, folder: Path) -> None:
    """A command line of the verbs that answer at once."""
    line = _text(data, _COMMANDS).decode("utf-8", errors="replace").replace("\x00", "")
    try:
        arguments = shlex.split(line)
    except ValueError:
        arguments = line.split()
    verb = arguments[0] if arguments else "kv"
    _run([verb if verb in ("kv", "fit", "estimate", "compare", "show", "list") else "kv", *arguments[1:]])


def _run(arguments: list[str]) -> None:
    """Run a command; an exception that the command line would show as its own fault is a fault."""
    result = CliRunner().invoke(main, arguments)
    error = result.exception
    if error is not None and not isinstance(error, (SystemExit, KvroofError)):
        raise error


READERS: dict[str, Read] = {
    "config": read_config,
    "safetensors": read_safetensors,
    "gguf": read_gguf,
    "hardware": read_hardware,
    "calibration": read_calibration,
    "trace": read_a_trace,
    "points": read_served_points,
    "kernels": read_kernel_table,
    "log": read_an_engine_log,
    "arguments": read_arguments,
}


def attempt(reader: str, data: bytes, folder: Path) -> bool:
    """Return whether a reader answers what the bytes make; False where it refuses.

    Raises:
        Exception: Anything but a refusal: a fault.
    """
    for name in os.listdir(folder):
        (folder / name).unlink()
    try:
        READERS[reader](data, folder)
    except KvroofError as error:
        line = error.one_line()
        assert line.isprintable(), line
        assert len(line) <= 600, line
        return False
    return True
