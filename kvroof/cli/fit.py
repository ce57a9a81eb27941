"""`kvroof fit`: the memory ledger against a budget."""

from __future__ import annotations

import sys

import click

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.cli.engine_options import Flags, Stored, chosen_storage, engine_options
from kvroof.cli.output import plain, print_json, print_view
from kvroof.cli.quantities import SIZE
from kvroof.ground.errors import BadInput
from kvroof.memory.budget import Draft
from kvroof.memory.commands import start_line
from kvroof.memory.ledger import fit
from kvroof.memory.terms import budget_terms
from kvroof.spec.parallel import Layout, check_layout, draft_layout
from kvroof.spec.params import parse_formats
from kvroof.spec.precision import parse_kv_format


@click.command("fit")
@click.argument("model")
@click.argument("hw", required=False)
@options.cached
@click.option("--capacity", type=SIZE, help="Memory of one device, instead of HW's, e.g. 22GiB.")
@click.option("--weights", type=SIZE, help="Weights on one device, instead of the count.")
@options.encoder_tokens
@options.utilization
@options.reserve
@click.option("--activations", type=SIZE, help="Peak of one step, instead of the formula's.")
@click.option("--non-torch", type=SIZE, help="CUDA context and libraries, e.g. 0.35GiB.")
@click.option("--cuda-graphs", type=SIZE, help="Memory of captured graphs, e.g. 0.6GiB.")
@click.option("--adapters", type=int, help="LoRA adapters held at once.")
@click.option("--adapter-rank", type=int, default=16, show_default=True, help="Their largest rank.")
@click.option("--draft", metavar="MODEL", help="A draft model: its weights and its cache are counted.")
@click.option(
    "--admission",
    type=click.Choice(("reserve", "optimistic")),
    default="reserve",
    show_default=True,
    help="Admit what can grow to --tokens, or as many as fit at --typical-tokens, and preempt.",
)
@click.option("--typical-tokens", type=int, help="Tokens of a usual sequence, for optimistic admission.")
@engine_options
@options.kv_dtype
@options.weights_dtype
@options.offloading
@options.served_parallel
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
    activations: int | None,
    non_torch: int | None,
    cuda_graphs: int | None,
    adapters: int | None,
    adapter_rank: int,
    draft: str | None,
    admission: str,
    typical_tokens: int | None,
    kv_dtype: str,
    weights_dtype: str,
    flags: Flags,
    offloaded: options.Offloading,
    layout: Layout,
    ignore_keys: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Does it fit, by how much, how far it goes, and what would make it fit. Exit 1 when it does not.

    \b
    kvroof fit llama-3.1-8b h100-sxm --tokens 32768 --seqs 16
    kvroof fit config.json --capacity 22GiB --weights 13.04GiB --reserve 3GiB --utilization 1
    kvroof fit gpt-oss-120b h100-sxm --engine vllm --tp 2 --max-num-batched-tokens 8192
    """
    machine = load_hardware(hw) if hw is not None else None
    if machine is None and capacity is None:
        raise BadInput("no machine and no capacity", where="fit", way_out="name a HW, or add --capacity 80GB")
    if (admission == "optimistic") != (typical_tokens is not None):
        raise BadInput(
            "optimistic admission and the tokens of a usual sequence go together",
            where="--admission",
            way_out="give --admission optimistic --typical-tokens 2000, or neither",
        )
    arch = offloaded.of(load_model(model, ignore_keys=ignore_keys))
    stored = chosen_storage(flags, arch, layout, kv_dtype)
    check_layout(arch, stored.layout)
    drafter = None if draft is None else _drafter(draft, stored, kv_dtype, ignore_keys)
    terms = budget_terms(
        arch,
        stored.allocator,
        seqs,
        stored.layout.tp,
        tokens=flags.get("max_model_len") or arch.max_position_embeddings,
        tokens_per_step=flags.get("max_num_batched_tokens"),
        reserved=not options.left_out("reserve"),
        activations=activations,
        non_torch=non_torch,
        graphs=cuda_graphs,
        lora=None if adapters is None else (adapters, adapter_rank),
        draft=None if drafter is None else (drafter.model, drafter.layout),
    )
    ledger = fit(
        arch,
        capacity if capacity is not None else machine.capacity_bytes if machine else 0,
        tokens=stored.tokens(tokens),
        seqs=seqs,
        utilization=utilization,
        reserve_bytes=reserve,
        weights_bytes=weights,
        formats=parse_formats(weights_dtype, arch),
        **stored._asdict(),
        encoder_tokens=encoder_tokens,
        terms=terms,
        draft=drafter,
        typical_tokens=typical_tokens,
        adapters=(adapters or 0, adapter_rank),
        admit_all=options.left_out("seqs") or typical_tokens is not None,
    )
    command = ledger.engine and start_line(ledger.engine, options.served_name(model), ledger.flags)
    if as_json:
        print_json(plain(ledger) | {"command": command})
    else:
        from kvroof.view.memory import fit_view

        print_view(fit_view(ledger, machine if capacity is None else None, explain, command))
    sys.exit(0 if ledger.fits else 1)


def _drafter(name: str, stored: Stored, kv_dtype: str, ignore_keys: tuple[str, ...]) -> Draft:
    """Return a model that drafts, its cache in the dtype that was asked for."""
    model = load_model(name, ignore_keys=ignore_keys)
    kv_format = parse_kv_format(kv_dtype, model)
    return Draft(model=model, kv_format=kv_format, layout=draft_layout(model, stored.layout))
