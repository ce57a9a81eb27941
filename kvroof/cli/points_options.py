"""Options that say of measured points what their file does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import click

F = TypeVar("F", bound=Callable[..., Any])

_RANKS = {
    "tp": "Tensor-parallel ranks",
    "pp": "Pipeline stages",
    "dp": "Replicas of attention",
    "ep": "Parts that experts are dealt into",
    "dcp": "Ranks sharing a KV head's tokens",
}
_OPTIONS = (
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
_NAMES = ("model", "hw", "framework", *_RANKS, "weights_dtype", "kv_dtype")


def filling(function: F) -> F:
    """Give a command `known`: by column, what its options say of the points."""

    @wraps(function)
    def command(**options: Any) -> Any:
        known = {name: str(options[name]) for name in _NAMES if options[name] is not None}
        own = {name: value for name, value in options.items() if name not in _NAMES}
        return function(known=known, **own)

    made: Callable[..., Any] = command
    for option in reversed(_OPTIONS):
        made = option(made)
    return cast(F, made)
