"""Feed-forward kinds: dense and mixture-of-experts."""

from __future__ import annotations

from typing import TypeAlias

from kvroof.ground.record import record, static
from kvroof.spec.weights import EXPERTS, Role, Weight, vector


def _matrices(
    hidden: int, inner: int, gated: bool, role: Role, prefix: str = "", count: int = 1
) -> tuple[Weight, ...]:
    """Return the two matrices of an MLP; a gated one has its gate and up matrix side by side."""
    up = Weight(
        name=f"{prefix}gate_up_proj" if gated else f"{prefix}up_proj",
        shape=(hidden, inner * (2 if gated else 1)),
        count=count,
        split=inner,
        role=role,
    )
    down = Weight(
        name=f"{prefix}down_proj",
        shape=(inner, hidden),
        count=count,
        split=inner,
        split_rows=True,
        role=role,
    )
    return up, down


@record
class DenseFFN:
    """An MLP of two matrices, or three when `gated` (SwiGLU, GeGLU)."""

    hidden_size: int
    intermediate_size: int
    gated: bool = static(default=True)
    bias: bool = static(default=False)
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()

    @property
    def projections(self) -> tuple[Weight, ...]:
        """The matrices applied to every token."""
        return _matrices(self.hidden_size, self.intermediate_size, self.gated, "ffn")

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the MLP."""
        biases = tuple(
            vector(f"{w.name}.bias", w.shape[1], split=1 if w.split_rows else w.split)
            for w in self.projections
            if self.bias
        )
        return self.projections + biases + self.extras


@record
class MoE:
    """A router, `num_experts` MLPs of which each token runs `num_experts_per_tok`, and shared MLPs.

    `shared_intermediate_size` is the width of the experts every token runs, None where there are
    none. `expert_input_size` is the width the routed experts read where it is not the residual's (latent
    experts; their down and up projections are `extras`), `router_input_size` the width the scores are made
    from where it is not (ZAYA; the MLP before them is in `extras`). The router also chooses among
    `zero_experts`, which compute nothing and hold nothing (LongCat). `extras` are biases, gates and
    whatever else each token runs or an expert owns.
    """

    hidden_size: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int | None = None
    expert_input_size: int | None = None
    router_input_size: int | None = None
    zero_experts: int = static(default=0)
    gated: bool = static(default=True)
    shared_gated: bool = static(default=True)
    shared: bool = static(default=False)
    extras: tuple[Weight, ...] = ()
    expert_extras: tuple[Weight, ...] = ()

    @property
    def router(self) -> Weight:
        """The matrix that scores the experts."""
        choices = self.num_experts + self.zero_experts
        width = self.hidden_size if self.router_input_size is None else self.router_input_size
        return Weight(name="router", shape=(width, choices), role="router")

    @property
    def computed_per_tok(self) -> float:
        """Experts that a token computes: its share of the choices that are no zero experts."""
        if not self.zero_experts:
            return self.num_experts_per_tok
        return self.num_experts_per_tok * self.num_experts / (self.num_experts + self.zero_experts)

    @property
    def experts(self) -> tuple[Weight, ...]:
        """The routed experts' matrices, all of them."""
        width = self.hidden_size if self.expert_input_size is None else self.expert_input_size
        return _matrices(width, self.moe_intermediate_size, self.gated, "expert", EXPERTS, self.num_experts)

    @property
    def shared_experts(self) -> tuple[Weight, ...]:
        """The matrices every token runs."""
        if self.shared_intermediate_size is None:
            return ()
        return _matrices(
            self.hidden_size,
            self.shared_intermediate_size,
            self.shared_gated,
            "shared_expert",
            "shared_expert.",
        )

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Every parameter of the layer's feed-forward part."""
        return (self.router, *self.experts, *self.shared_experts, *self.extras, *self.expert_extras)

    @property
    def active_elements(self) -> int:
        """Parameters that one token runs through."""
        routed = (*self.experts, *self.expert_extras)
        idle = sum(w.elements for w in routed)
        used = sum(w.elements // w.count for w in routed) * self.computed_per_tok
        return sum(w.elements for w in self.weights) - idle + round(used)


FFN: TypeAlias = DenseFFN | MoE
