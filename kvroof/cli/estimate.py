"""`kvroof estimate`: times, rates and what bounds them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.deployed import Deployed, deployment
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import RATE
from kvroof.ground.errors import BadInput
from kvroof.roofline.plan import Plan
from kvroof.serving.latency import estimate
from kvroof.spec.parallel import draft_layout

if TYPE_CHECKING:
    from kvroof.search.sensitivity import Sensitivity


@click.command("estimate")
@click.argument("model")
@click.argument("hw")
@options.requests
@click.option("--chunk", type=int, help="Prompt tokens per prefill step; the whole prompt if left out.")
@options.cached_prefix
@options.encoder_tokens
@options.shown("--patches", 0, "Image patches of each prompt, for the towers.")
@click.option("--compute-dtype", help="Arithmetic forced on every matrix, e.g. fp8.")
@click.option("--materialised", is_flag=True, help="Attention writes its scores to HBM (no FlashAttention).")
@options.utilization
@options.reserve
@options.block_size
@deployment
@options.offloading
@click.option("--host-bandwidth", type=RATE, help="Host memory's; the host runs what it holds.")
@click.option("--expert-imbalance", type=float, help="Load of the busiest expert rank over the mean's.")
@options.shown("--spec-tokens", 0, "Tokens drafted per step.")
@options.shown("--acceptance", 0.7, "Share of drafted tokens that hold.")
@click.option("--draft", metavar="MODEL", help="Who drafts; else the model's own layers, or a look-up.")
@options.shown("--adapters", 0, "LoRA adapters that requests choose among.")
@options.shown("--adapter-rank", 16, "Rank of each adapter.")
@click.option("--sensitivity", is_flag=True, help="Also d log(time) / d log(bandwidth, FLOPs, ...).")
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
    deployed: Deployed,
    offloaded: options.Offloading,
    host_bandwidth: float | None,
    expert_imbalance: float | None,
    spec_tokens: int,
    acceptance: float,
    draft: str | None,
    adapters: int,
    adapter_rank: int,
    sensitivity: bool,
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
    if sensitivity and (chunk is not None or spec_tokens):
        raise BadInput(
            "elasticities are those of whole prompts and one token a step",
            where="--sensitivity",
            way_out="leave --chunk and --spec-tokens out",
        )
    machine = load_hardware(hw)
    plan = Plan.of(
        offloaded.of(load_model(model, ignore_keys=deployed.ignore_keys)),
        machine,
        layout=deployed.layout,
        expert_imbalance=expert_imbalance,
        kv_dtype=deployed.kv_dtype,
        weights_dtype=deployed.weights_dtype,
        compute_dtype=compute_dtype,
        block_size=block_size,
        io_aware=not materialised,
        host_bytes_per_s=host_bandwidth,
        efficiency=deployed.efficiencies([machine])[machine.name],
        adapters=adapters,
        adapter_rank=adapter_rank,
    )
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
        draft=None if draft is None else _drafter(draft, deployed, plan),
        utilization=utilization,
        reserve_bytes=reserve,
    )
    asked = (isl, osl, batch, cached_prefix, encoder_tokens, patches)
    slopes = _slopes(plan, *asked) if sensitivity else None
    if as_json:
        print_json(answer if slopes is None else plain(answer) | {"sensitivity": slopes})
    else:
        from kvroof.view.speed import estimate_view, sensitivity_table

        print_view(estimate_view(answer, machine, explain))
        if slopes is not None:
            print_view([sensitivity_table(slopes)])
    sys.exit(0 if answer.fits else 1)


def _drafter(name: str, deployed: Deployed, target: Plan) -> Plan:
    """Return the plan of a draft model beside its target; its weights are stored as its own files say."""
    model = load_model(name, ignore_keys=deployed.ignore_keys)
    return Plan.of(
        model,
        target.hardware,
        layout=draft_layout(model, target.layout),
        kv_dtype=deployed.kv_dtype,
        efficiency=target.efficiency,
    )


def _slopes(
    plan: Plan, isl: int, osl: int, batch: int, cached_prefix: int, encoder_tokens: int, patches: int
) -> Sensitivity:
    """Return the elasticities, with what JAX compiled kept for the next time."""
    from kvroof.search.sensitivity import sensitivity
    from kvroof.search.sweep import keep_compilations

    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    keep_compilations(str(Path(cache) / "kvroof" / "jax"))
    return sensitivity(
        plan,
        isl=isl,
        osl=osl,
        batch=batch,
        cached_prefix=cached_prefix,
        encoder_tokens=encoder_tokens,
        patches=patches,
    )
