"""How a model is laid over devices, and which layouts are valid: decided here and nowhere else."""

from __future__ import annotations

from kvroof.ground.errors import BadInput, Unsupported
from kvroof.ground.record import record, static
from kvroof.spec.architecture import Architecture
from kvroof.spec.attention import GroupedAttention
from kvroof.spec.recurrent import Recurrent


@record
class Layout:
    """Ranks along each axis of parallelism: `tp` splits every layer, `pp` the stack of layers."""

    tp: int = static(default=1)
    pp: int = static(default=1)

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp


def check_layout(model: Architecture, layout: Layout) -> None:
    """Refuse a layout that no engine could run.

    KV heads shard over ranks; when there are fewer heads than ranks each head is replicated.

    Raises:
        BadInput: A count that is not positive, or that does not divide heads or MLP widths.
    """
    tp = layout.tp
    for axis, ranks in (("--tp", tp), ("--pp", layout.pp)):
        if ranks < 1:
            raise BadInput(f"{ranks} is not a positive number of ranks", where=axis)
    if layout.pp > model.num_layers:
        raise BadInput(f"{layout.pp} stages are more than {model.num_layers} layers", where="--pp")
    for group in model.layers:
        for mixer in group.layer.mixers:
            if isinstance(mixer, Recurrent):
                _divides(mixer.held.split, tp, f"heads of {mixer.kind}", model.name)
                continue
            _divides(mixer.num_heads, tp, "attention heads", model.name)
            if isinstance(mixer, GroupedAttention):
                heads = mixer.num_kv_heads
                _divides(max(heads, tp), min(heads, tp), "KV heads against ranks", model.name)
        for ffn in group.layer.ffns:
            for weight in ffn.weights:
                if weight.split > 1:
                    _divides(weight.split, tp, f"columns of {weight.name}", model.name)


def _divides(total: int, ranks: int, what: str, name: str) -> None:
    if total % ranks:
        choices = ", ".join(str(d) for d in range(1, min(total, 64) + 1) if total % d == 0)
        raise BadInput(
            f"{ranks} ranks do not divide {total} {what} of {name}",
            where="--tp",
            way_out=f"try one of {choices}",
        )


def refuse_unmodelled(axes: dict[str, int]) -> None:
    """Refuse axes of parallelism that are not modelled yet, rather than ignore them.

    Raises:
        Unsupported: Any axis above 1.
    """
    for axis, ranks in axes.items():
        if ranks != 1:
            raise Unsupported(
                f"{axis} parallelism of {ranks} is not modelled yet",
                where=f"--{axis}",
                way_out="use --tp, or leave it at 1",
            )
