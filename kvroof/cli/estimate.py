"""`kvroof estimate`: times, rates and what bounds them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import RATE
from kvroof.ground.errors import BadInput
from kvroof.roofline.efficiency import IDENTITY, Efficiency
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate
from kvroof.spec.hardware import Hardware
from kvroof.spec.offload import offload


@click.command("estimate")
@click.argument("model")
@click.argument("hw")
@click.option("--isl", default=2048, show_default=True, help="Prompt tokens of each request.")
@click.option("--osl", default=256, show_default=True, help="Output tokens of each request.")
@click.option("--batch", default=8, show_default=True, help="Requests at once.")
@click.option("--chunk", type=int, help="Prompt tokens per prefill step; the whole prompt if left out.")
@click.option("--cached-prefix", default=0, show_default=True, help="Prompt tokens already in the cache.")
@options.encoder_tokens
@click.option("--patches", default=0, show_default=True, help="Image patches of each prompt, for the towers.")
@click.option("--compute-dtype", help="Arithmetic forced on every matrix, e.g. fp8.")
@click.option("--materialised", is_flag=True, help="Attention writes its scores to HBM (no FlashAttention).")
@options.utilization
@options.reserve
@options.block_size
@options.kv_dtype
@options.weights_dtype
@options.offloading
@click.option("--host-bandwidth", type=RATE, help="Host memory's; the host runs what it holds.")
@options.parallel
@click.option("--expert-imbalance", type=float, help="Load of the busiest expert rank over the mean's.")
@click.option("--spec-tokens", default=0, show_default=True, help="Tokens drafted per step.")
@click.option("--acceptance", default=0.7, show_default=True, help="Share of drafted tokens that hold.")
@click.option("--draft", metavar="MODEL", help="Who drafts; else the model's own layers, or a look-up.")
@click.option("--adapters", default=0, show_default=True, help="LoRA adapters that requests choose among.")
@click.option("--adapter-rank", default=16, show_default=True, help="Rank of each adapter.")
@options.calibrated
@click.option("--sensitivity", is_flag=True, help="Also d log(time) / d log(bandwidth, FLOPs, ...).")
@options.ignore_key
@options.explain
@options.json_output
def command(
    model: str,
    hw: str,
    isl: int,
    osl: int,
    batch: int,
    chunk: int | None,
    cached_prefix: int,
    encoder_tokens: int,
    patches: int,
    compute_dtype: str | None,
    materialised: bool,
    utilization: float,
    reserve: int,
    block_size: int,
    kv_dtype: str,
    weights_dtype: str,
    offload_layers: int,
    offload_experts: bool,
    offload_kv: bool,
    host_bandwidth: float | None,
    expert_imbalance: float | None,
    spec_tokens: int,
    acceptance: float,
    draft: str | None,
    adapters: int,
    adapter_rank: int,
    calibration: str,
    sensitivity: bool,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """TTFT, TPOT and throughput of a batch, whether it fits, and what bounds it, by operation.

    \b
    kvroof estimate llama-3.1-8b h100-sxm
    kvroof estimate deepseek-v3 h200-sxm --tp 8 --isl 4000 --osl 1000 --batch 64 --explain
    kvroof estimate deepseek-v3 h200-sxm --dp 32 --ep 32 --redundant-experts 32 --batch 4096
    kvroof estimate llama-3.1-70b h100-sxm --tp 4 --spec-tokens 3 --draft llama-3.2-1b
    """
    arch, machine = load_model(model, ignore_keys=ignore_keys), load_hardware(hw)
    layout, efficiency = options.chosen_layout(), _efficiency(calibration, machine)
    plan = Plan.of(
        offload(arch, layers=offload_layers, experts=offload_experts, kv=offload_kv),
        machine,
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        dcp=layout.dcp,
        redundant_experts=layout.redundant_experts,
        expert_imbalance=expert_imbalance,
        kv_dtype=kv_dtype,
        weights_dtype=weights_dtype,
        compute_dtype=compute_dtype,
        block_size=block_size,
        io_aware=not materialised,
        host_bytes_per_s=host_bandwidth,
        efficiency=efficiency,
        adapters=adapters,
        adapter_rank=adapter_rank,
    )
    drafter = Plan.of(draft, machine, tp=layout.tp, efficiency=efficiency) if draft is not None else None
    answer = estimate(
        plan,
        isl=isl,
        osl=osl,
        batch=batch,
        chunk=chunk,
        cached_prefix=cached_prefix,
        encoder_tokens=encoder_tokens,
        patches=patches,
        spec_tokens=spec_tokens,
        acceptance=acceptance,
        draft=drafter,
        utilization=utilization,
        reserve_bytes=reserve,
    )
    slopes = None
    if sensitivity:
        if chunk is not None or spec_tokens:
            raise BadInput(
                "elasticities are those of whole prompts and one token a step",
                where="--sensitivity",
                way_out="leave --chunk and --spec-tokens out",
            )
        from kvroof.search.sensitivity import sensitivity as elasticities
        from kvroof.search.sweep import keep_compilations

        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        keep_compilations(str(Path(cache) / "kvroof" / "jax"))
        slopes = elasticities(
            plan,
            isl=isl,
            osl=osl,
            batch=batch,
            cached_prefix=cached_prefix,
            encoder_tokens=encoder_tokens,
        )
    if as_json:
        print_json(answer if slopes is None else plain(answer) | {"sensitivity": slopes})
    else:
        from kvroof.view.speed import estimate_view, sensitivity_table

        print_view(estimate_view(answer, plan.hardware, explain))
        if slopes is not None:
            print_view([sensitivity_table(slopes)])
    sys.exit(0 if answer.fits else 1)


def _efficiency(calibration: str, machine: Hardware) -> Efficiency:
    """Return the calibration asked for; without one for the machine, the identity, which gives bounds."""
    if calibration == "none":
        return IDENTITY
    from kvroof.calibration.load import load_calibration

    return load_calibration(calibration, machine.name) or IDENTITY
