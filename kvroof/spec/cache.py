"""What a layer remembers: a cache that grows with tokens, a state that does not."""

from __future__ import annotations

from kvroof.ground.record import record, static
from kvroof.spec.reach import AnyReach


@record
class Cache:
    """Elements that one layer stores for each token its `reach` keeps.

    `split` is the largest number of tensor-parallel ranks that divide it among themselves. Index keys
    are stored in a dtype of their own by engines, so they are kept apart.
    """

    kind: str = static()
    reach: AnyReach
    k_width: int
    v_width: int
    index_width: int = 0
    split: int = 1

    @property
    def kv_width(self) -> int:
        """Elements per kept token."""
        return self.k_width + self.v_width + self.index_width


@record
class State:
    """Elements that one layer holds per sequence, whatever its length.

    A convolution keeps its last `conv_kernel` columns (Hugging Face) or one fewer (engines; everyone with
    `dropped_columns` 1) of `conv_channels`; `recurrent_elements` is the recurrent state, fp32 by default,
    with `in_model_dtype` kept as the convolution is. `split` is the largest number of ranks that divide
    it; each holds `conv_replicated` of the channels whole (Mamba-2's B and C where heads share a group).
    """

    conv_channels: int = 0
    conv_kernel: int = 0
    recurrent_elements: int = 0
    split: int = 1
    conv_replicated: int = 0
    dropped_columns: int = 0
    in_model_dtype: bool = static(default=False)
