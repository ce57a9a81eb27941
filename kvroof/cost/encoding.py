"""Images and sounds of a prompt: what its towers cost before their tokens join the prompt."""

from __future__ import annotations

from kvroof.cost.formulas import matmul_flops
from kvroof.cost.kernels import product_items
from kvroof.cost.op import Op
from kvroof.cost.products import Run
from kvroof.spec.architecture import Architecture


def encode(model: Architecture, patches: float, run: Run) -> tuple[Op, ...]:
    """Return what the towers cost for `patches` rows (of images, or frames of sound) in one step.

    Every parameter meets every row once; attention among the rows of one image is not counted. Towers are
    whole on every rank, in the model's dtype.
    """
    return tuple(
        Op(
            name=f"tower.{tower.name}",
            kind="gemm",
            count=1,
            flops=matmul_flops(patches, tower.params),
            weight_bytes=run.row_bytes(tower.params),
            compute=run.arithmetic(),
            family="gemm.bf16",
            items=product_items(patches, model.hidden_size),
            depth=model.hidden_size,
        )
        for tower in model.towers
    )
