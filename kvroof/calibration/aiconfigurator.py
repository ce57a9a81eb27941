"""Reads the measured kernel tables of the installed package `aiconfigurator-core` (the extra `silicon`).

They are parquet files, `systems/data/<gpu>/<category>/<framework>/<version>/<op>_perf.parquet`, with latency
in ms; a cached length is `isl + step`. Nothing of the package is imported, and nothing of it is copied into
kvroof: profiles hold a few fitted parameters. Its end-to-end sample is never read here.

What is left out is said in `SCOPE`: shapes that fall to other kernels, and uneven routing, whose bytes a
table does not tell. The errors of a profile hold for what is left in.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kvroof.calibration import work
from kvroof.calibration.points import Points
from kvroof.calibration.sources import COMPUTE, collect
from kvroof.calibration.wires import Messages
from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.record import record, static
from kvroof.roofline.collectives import tiers
from kvroof.spec.hardware import Hardware

Rows: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[["Table"], Iterator[Points]]

PACKAGE = "aiconfigurator-core"
SYSTEMS = {
    "a100-sxm-80gb": "a100_sxm",
    "h100-sxm": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "b200-sxm": "b200_sxm",
    "b300-sxm": "b300_sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000-blackwell-server": "rtx_pro_6000_server",
}
"""The package's names of the catalog's machines; its Intel B60 has no hardware profile here."""
FRAMEWORKS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
DTYPE_NAMES = {
    "bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int8_wo": "int8_wo", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4",
}  # fmt: skip
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 9 / 16, "mxfp4": 17 / 32, "int4": 0.5}
ACTIVATION_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 9 / 16}
MAX_GROUP, MAX_KV_HEADS, HEAD_DIMS = 16, 16, (64, 128)
MAX_SEQS, MAX_TOKENS, LEAST_LENGTH = 512, 32768, 128
SCOPE = (
    "errors hold for what was fitted: attention with head_dim 64 or 128, no window, at most 16 KV heads and "
    "16 queries each, 128 tokens or more, up to 512 sequences in decode or 32,768 tokens in prefill; "
    "matrices of 2 M elements or more; experts of one rank, evenly routed",
    "over every attention shape of those tables, windows and other head_dim too, the median profile is off "
    "by 24 % in decode and 21 % in prefill (34 % with an fp8 cache)",
    "measured with the data of the last repetition still in cache, where it fits; a serving step is cold",
)
"""What a profile from these tables is good for, and how good it is beyond."""
GPT_OSS_HIDDEN = 2880
"""The model whose experts mxfp4 is served with; other rows of that dtype are of other kernels."""
QUANTISING = ("tensorrt-llm", ("fp8", "nvfp4"))
"""Whose products were timed with the quantising of their inputs, 8 us at every size, which serving fuses."""
FEWEST = 96
"""Points below which a family of a version is passed over for an older one's."""


@record
class Table:
    """Rows of one parquet file, and what they were measured on."""

    rows: Rows
    version: str = static()
    hardware: Hardware
    framework: str = static(default="")

    @property
    def narrow(self) -> bool:
        """Whether the framework multiplies mxfp4 weights with 8-bit activations where the chip can."""
        return self.framework != "vllm" and "fp4" in self.hardware.peak_flops_per_s

    def where(self, chosen: Any) -> Table:
        """Return the chosen rows."""
        picked = {name: values[chosen] for name, values in self.rows.items()}
        return Table(rows=picked, version=self.version, hardware=self.hardware, framework=self.framework)

    def __getitem__(self, name: str) -> Any:
        """Return a column, numbers as float64."""
        values = self.rows[name]
        return values.astype(np.float64) if values.dtype.kind in "iuf" else values

    def values(self, name: str) -> list[str]:
        """Return the distinct entries of a column of words."""
        return sorted({str(v) for v in self.rows[name]})

    def usual_kernel(self) -> tuple[Table, str]:
        """Return the rows of the implementation that the framework picks most often, and its name."""
        names, counts = np.unique(self.rows["kernel_source"], return_counts=True)
        usual = names[int(np.argmax(counts))]
        return self.where(self.rows["kernel_source"] == usual), str(usual)


@record
class Aiconfigurator:
    """The tables of an installation: the newest version of each framework."""

    root: Path = static()
    version: str = static(default="")

    @property
    def provenance(self) -> str:
        """Name, version and licence."""
        return f"{PACKAGE} {self.version} (Apache-2.0, NVIDIA)"

    @property
    def scope(self) -> tuple[str, ...]:
        """What the points stand for."""
        return SCOPE

    def points(self, hardware: Hardware, framework: str) -> Iterator[Points]:
        """Yield the points of each kernel family on a machine under a framework.

        Raises:
            BadInput: The package has no tables of that machine or framework.
        """
        if hardware.name not in SYSTEMS or framework not in FRAMEWORKS:
            known = ", ".join(SYSTEMS if hardware.name not in SYSTEMS else FRAMEWORKS)
            asked = hardware.name if hardware.name not in SYSTEMS else framework
            raise BadInput(
                f"{PACKAGE} has no tables of {asked}", where="calibrate", way_out=f"it has {known}"
            )
        for (category, op), reader in READERS.items():
            seen: set[str] = set()
            for table in self._tables(hardware, category, framework, op):
                for points in reader(table):
                    if points.family not in seen and len(points) >= FEWEST:
                        seen.add(points.family)
                        yield points

    def messages(self, hardware: Hardware, framework: str) -> Iterator[Messages]:
        """Yield the collectives: the framework's own all-reduce under graph capture, NCCL's for the rest."""
        for file in self._files(hardware, "comm", FRAMEWORKS[framework], "custom_allreduce")[:1]:
            rows = read_parquet(file)
            captured = np.char.endswith(rows["kernel_source"].astype(str), "_graph")
            chosen = captured if captured.any() else np.ones(len(captured), bool)
            yield _messages("all_reduce", rows, chosen, hardware, file.parent.name)
        for file in self._files(hardware, "comm", "nccl", "nccl")[:1]:
            rows = read_parquet(file)
            for name, op in (
                ("all_gather", "all_gather"),
                ("reduce_scatter", "reduce_scatter"),
                ("all_to_all", "alltoall"),
            ):
                chosen = (rows["op_name"] == op) & (rows["nccl_dtype"] == "half")
                yield _messages(name, rows, chosen, hardware, f"NCCL {file.parent.name}")

    def _tables(self, hardware: Hardware, category: str, framework: str, op: str) -> Iterator[Table]:
        """Yield the tables of an operation, the newest version first."""
        for file in self._files(hardware, category, FRAMEWORKS[framework], op):
            yield Table(
                rows=read_parquet(file), version=file.parent.name, hardware=hardware, framework=framework
            )

    def _files(self, hardware: Hardware, category: str, folder: str, op: str) -> list[Path]:
        """Return the files of an operation, the newest version first."""
        place = self.root / SYSTEMS[hardware.name] / category / folder
        return sorted(place.glob(f"*/{op}_perf.parquet"), key=lambda f: _order(f.parent.name), reverse=True)


def installed() -> Aiconfigurator:
    """Return the tables of the installed package, without importing it.

    Raises:
        Unsupported: It is not installed, or has no tables.
    """
    spec = importlib.util.find_spec("aiconfigurator_core")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    root = Path(places[0]) / "systems" / "data" if places else None
    if root is None or not root.is_dir():
        raise Unsupported(
            f"{PACKAGE} is not installed", where="calibrate", way_out="pip install 'kvroof[silicon]'"
        )
    return Aiconfigurator(root=root, version=importlib.metadata.version(PACKAGE))


def read_parquet(path: Path) -> Rows:
    """Return the columns of a parquet file as arrays.

    Raises:
        Unsupported: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise Unsupported(
            "pyarrow is not installed", where="calibrate", way_out="pip install 'kvroof[silicon]'"
        ) from None
    table = parquet.read_table(path)
    return {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}


def _order(version: str) -> tuple[int, ...]:
    """Return a sort key; a pre-release comes before its release, a development build before all."""
    parts = [part for part in re.split(r"\.|(?=rc|post|dev)", version) if part]
    early = {"rc": -(10**6), "dev": -(10**7)}
    ranks = [early.get(re.sub(r"\d", "", part), 0) + int(re.sub(r"\D", "", part) or 0) for part in parts]
    return (*ranks, 0)


def _gemm(table: Table) -> Iterator[Points]:
    served = (table["n"] >= 512) & (table["k"] >= 512) & (table["m"] <= 16384)
    size = table["n"] * table["k"]
    table = table.where(served & (size >= 2**21) & (size <= 2**28.5))
    for name in table.values("gemm_dtype"):
        dtype = DTYPE_NAMES.get(name, name)
        if dtype not in ACTIVATION_BYTES or not _has(table.hardware, dtype):
            continue
        rows = table.where(table["gemm_dtype"] == name)
        if table.framework == QUANTISING[0] and dtype in QUANTISING[1]:
            continue
        did = work.gemm(rows["m"], rows["n"], rows["k"], WEIGHT_BYTES[dtype], ACTIVATION_BYTES[dtype])
        _, kernel = rows.usual_kernel()
        yield _points(f"gemm.{dtype}", did, rows, dtype, kernel)


def _attention(table: Table, phase: str) -> Iterator[Points]:
    heads, kv_heads = table["num_heads"], table["num_key_value_heads"]
    served = (heads / kv_heads <= MAX_GROUP) & (kv_heads <= MAX_KV_HEADS)
    if "window_size" in table.rows:
        served &= table["window_size"] == 0
    if "head_dim" in table.rows:
        served &= np.isin(table["head_dim"], HEAD_DIMS)
    if phase == "decode":
        served &= (table["isl"] + table["step"] >= LEAST_LENGTH) & (table["batch_size"] <= MAX_SEQS)
    else:
        served &= (table["isl"] >= LEAST_LENGTH) & (table["batch_size"] * table["isl"] <= MAX_TOKENS)
    if "attn_dtype" in table.rows:
        served &= table["attn_dtype"] == "bfloat16"
    table = table.where(served)
    for name in table.values("kv_cache_dtype"):
        kv = DTYPE_NAMES.get(name, name)
        rows, kernel = table.where(table["kv_cache_dtype"] == name).usual_kernel()
        size: Any = rows["head_dim"] if "head_dim" in rows.rows else 128.0
        length = rows["isl"] + (rows["step"] if phase == "decode" else 0)
        make = work.decode if phase == "decode" else work.prefill
        did = make(
            rows["batch_size"], length, rows["num_heads"], rows["num_key_value_heads"], size, WEIGHT_BYTES[kv]
        )
        yield _points(f"attention.{phase}" + (".fp8" if kv == "fp8" else ""), did, rows, "bf16", kernel)


def _latent(table: Table, phase: str) -> Iterator[Points]:
    length = table["isl"] + (table["step"] if phase == "decode" else 0)
    served = (length >= LEAST_LENGTH) & (table["num_heads"] >= 8)
    if phase == "decode":
        served &= table["batch_size"] <= MAX_SEQS
    else:
        served &= table["batch_size"] * length <= MAX_TOKENS
    table, length = table.where(served), length[served]
    for name in table.values("kv_cache_dtype"):
        kv = DTYPE_NAMES.get(name, name)
        chosen = table["kv_cache_dtype"] == name
        rows, n = table.where(chosen), length[chosen]
        make = work.latent_decode if phase == "decode" else work.latent_prefill
        did = make(rows["batch_size"], n, rows["num_heads"], WEIGHT_BYTES[kv])
        _, kernel = rows.usual_kernel()
        yield _points(f"mla.{phase}" + (".fp8" if kv == "fp8" else ""), did, rows, "bf16", kernel)


def _experts(table: Table) -> Iterator[Points]:
    table = table.where(_served_experts(table))
    for name in _expert_dtypes(table):
        dtype = DTYPE_NAMES.get(name, name)
        rows = table.where(table["moe_dtype"] == name)
        if dtype == "mxfp4" and (rows["hidden_size"] == GPT_OSS_HIDDEN).any():
            rows = rows.where(rows["hidden_size"] == GPT_OSS_HIDDEN)
        if "moe_torch_flow_min_latency" in rows.values("kernel_source") or dtype == "mxfp4":
            rows, _ = rows.usual_kernel()
        rows = _in_few_parts(rows)
        did = work.experts(
            rows["num_tokens"],
            rows["hidden_size"],
            rows["inter_size"] / rows["moe_tp_size"],
            rows["topk"],
            rows["num_experts"],
            rows["moe_ep_size"],
            WEIGHT_BYTES[dtype],
        )
        _, kernel = rows.usual_kernel()
        yield _points(f"moe.{dtype}", did, rows, dtype, kernel)


def _served_experts(table: Table) -> Any:
    """Return which rows are of gated experts, evenly routed, in shapes that serving has."""
    even = table["distribution"] == "balanced"
    if not even.any():
        even = np.char.startswith(table["distribution"].astype(str), "power_law_1.01")
    gated = np.char.find(table["kernel_source"].astype(str), "nongated") < 0
    gated &= (table["topk"] != 22) & (table["hidden_size"] != 2688)  # Nemotron-3: two matrices, not three
    inter = table["inter_size"] / table["moe_tp_size"]
    whole = (inter % 64 == 0) | (table["hidden_size"] == GPT_OSS_HIDDEN)
    return even & gated & (inter >= 128) & whole


def _expert_dtypes(table: Table) -> Iterator[str]:
    """Yield the tables' names of the dtypes that the framework serves experts in, where it has several.

    mxfp4 weights are multiplied with 8-bit activations where framework and chip can, else with 16-bit ones.
    """
    names = table.values("moe_dtype")
    for name in names:
        dtype = DTYPE_NAMES.get(name, name)
        if dtype not in WEIGHT_BYTES or not _has(table.hardware, dtype):
            continue
        if name == "w4a8_mxfp4_mxfp8" and not table.narrow:
            continue
        if name == "w4a16_mxfp4" and table.narrow and "w4a8_mxfp4_mxfp8" in names:
            continue
        yield name


def _in_few_parts(rows: Table) -> Table:
    """Return the rows of experts dealt to the fewest ranks that leave enough of them."""
    for parts in (1, 2, 4, 8):
        busy = rows["num_tokens"] * rows["topk"] >= rows["moe_ep_size"]
        alike = (rows["moe_ep_size"] <= parts) & busy
        if alike.sum() >= FEWEST:
            break
    return rows.where(alike)


def _has(hardware: Hardware, dtype: str) -> bool:
    return COMPUTE[dtype] in hardware.peak_flops_per_s


def _points(family: str, did: work.Work, rows: Table, dtype: str, kernel: str) -> Points:
    seconds = rows["latency"] * 1e-3
    return collect(family, did, seconds, rows.hardware, dtype, kernel, rows.version)


def _messages(name: str, rows: Rows, chosen: Any, hardware: Hardware, version: str) -> Messages:
    ranks = rows["num_gpus"][chosen].astype(np.float64)
    links = {n: tiers(hardware, int(n))[-1].link.bytes_per_s for n in np.unique(ranks)}
    return Messages(
        collective=name,
        ranks=ranks,
        message_bytes=rows["message_size"][chosen] * float(work.HALF),
        seconds=rows["latency"][chosen] * 1e-3,
        link_bytes_per_s=np.array([links[n] for n in ranks]),
        version=version,
    )


READERS: dict[tuple[str, str], Reader] = {
    ("gemm", "gemm"): _gemm,
    ("attention", "context_attention"): lambda table: _attention(table, "prefill"),
    ("attention", "generation_attention"): lambda table: _attention(table, "decode"),
    ("mla", "context_mla"): lambda table: _latent(table, "prefill"),
    ("mla", "generation_mla"): lambda table: _latent(table, "decode"),
    ("moe", "moe"): _experts,
}
