"""Options that say of measured points what their file does not."""

from __future__ import annotations

from typing import Any

import click

from kvroof.cli.options import gathered

_RANKS = {
    "tp": "Tensor-parallel ranks",
    "pp": "Pipeline stages",
    "dp": "Replicas of attention",
    "ep": "Parts that experts are dealt into",
    "dcp": "Ranks sharing a KV head's tokens",
}


def _known(**values: Any) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


filling = gathered(
    "known",
    _known,
    click.option("--model", help="The model that was measured; chooses among the file's."),
    click.option("--hw", help="The machine that was measured; chooses among the file's."),
    click.option("--framework", help="vllm, sglang or tensorrt-llm; chooses among the file's."),
    *(
        click.option(f"--{axis}", type=click.IntRange(1), help=f"{text}, where the file does not say.")
        for axis, text in _RANKS.items()
    ),
    click.option("--weights-dtype", help="Storage of the weights, where the file does not say."),
    click.option("--kv-dtype", help="Dtype of the cache, where the file does not say."),
)
"""Gives a command `known`: by column, what its options say of the points."""
