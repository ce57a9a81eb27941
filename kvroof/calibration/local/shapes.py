"""Which shapes are measured: few in a hurry, more otherwise; wider ones on an accelerator than on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from kvroof.calibration.local import products
from kvroof.calibration.local.attention import Heads, Rows, attention, decodes, prefills
from kvroof.calibration.local.bench import Bench
from kvroof.ground.record import record, static

LLC_UNKNOWN = 2**25
"""Bytes that are gone through twice before data is read again, where the cache's size is not known."""

AT_ONCE = 3
"""Products that are measured at a turn: they compile sooner than what attends."""


@record
class Shapes:
    """What is measured of a device.

    `products` are (m, k, n), `attention` the programs that attend, `layers` (tokens, hidden size) of what is
    elementwise. `dtypes` are those of products, `caches` those of attention, the first with all shapes and
    the others with every `sparing`th. `passes` are elements copied and summed, `messages` the bytes that
    each collective sends.
    """

    products: tuple[tuple[int, int, int], ...] = static()
    attention: tuple[Rows, ...] = static()
    layers: tuple[tuple[int, int], ...] = static()
    dtypes: tuple[str, ...] = static(default=("fp32", "bf16"))
    caches: tuple[str, ...] = static(default=("fp32",))
    sparing: int = static(default=2)
    passes: tuple[int, ...] = static(default=(2**23,))
    messages: tuple[int, ...] = static(default=tuple(2**power for power in range(13, 24, 2)))

    def benches(self, llc_bytes: float | None) -> list[Bench]:
        """Return the programs, families taking turns, so that a limit of time cuts them all alike.

        The points of one compiled program follow each other: the later ones cost little.
        """
        llc = llc_bytes or LLC_UNKNOWN
        first = [
            make(count) for count in self.passes for make in (products.copy, products.read, products.row)
        ]
        families: list[list[list[Bench]]] = []
        for index, dtype in enumerate(self.dtypes):
            step = 1 if index == 0 else self.sparing
            made = [products.product(*shape, dtype, llc) for shape in self.products[::step]]
            families.append([made[i : i + AT_ONCE] for i in range(0, len(made), AT_ONCE)])
        for index, dtype in enumerate(self.caches):
            step = 1 if index == 0 else self.sparing
            for phase in ("decode", "prefill"):
                programs = [program for program in self.attention if program.phase == phase]
                families.append([attention(program, dtype, llc) for program in programs[::step]])
        families.append([[products.elementwise(*shape, self.dtypes[0])] for shape in self.layers])
        return [products.empty_call(), *first, *_in_turn(families)]


def _in_turn(families: list[list[list[Bench]]]) -> Iterator[Bench]:
    for row in zip_longest(*families, fillvalue=[]):
        for program in row:
            yield from program


_FEW, _PAIR, _WIDE, _ALONE = Heads(2, 4, 64), Heads(2, 1, 64), Heads(8, 4, 128), Heads(4, 1, 64)
_ROWS = (512, 8, 128, 4, 32, 16, 64, 256)
"""Rows of products on a CPU, the most first, which show the peak; one or two are another kernel of XLA."""
_MATRICES = (
    (512, 1024), (512, 3584), (1792, 512), (256, 1024), (1024, 1024), (1024, 4096), (512, 128), (256, 1792),
)  # fmt: skip


def _products(
    rows: tuple[int, ...], matrices: tuple[tuple[int, int], ...], count: int
) -> tuple[tuple[int, int, int], ...]:
    """Return `count` products, rows and matrices each in turn, no pair twice."""
    made = [(rows[i % len(rows)], *matrices[(i + i // len(rows)) % len(matrices)]) for i in range(4 * count)]
    return tuple(dict.fromkeys(made))[:count]


QUICK = Shapes(
    products=_products(_ROWS, _MATRICES, 18),
    attention=(
        decodes(
            8, 1024, _FEW, ((8, 512), (1, 1000), (4, 128), (8, 60), (2, 700), (8, 900), (4, 300), (6, 200))
        ),
        prefills(4, 64, _FEW, (4, 3)),
        decodes(4, 512, _ALONE, ((4, 500), (1, 100), (2, 300), (3, 400))),
        prefills(2, 384, _FEW, (2,)),
        prefills(2, 160, _FEW, (2,)),
        prefills(1, 256, _FEW, (1,)),
        prefills(4, 32, _FEW, (4, 3)),
    ),
    layers=((32, 512), (8, 512), (512, 512), (1, 1024), (128, 256), (64, 1024), (256, 512), (4, 256)),
    sparing=3,
)
DEFAULT = Shapes(
    products=_products(
        (*_ROWS, 24, 384, 1024, 6),
        (*_MATRICES, (2048, 512), (512, 512), (2048, 2048), (1024, 256)),
        48,
    ),
    attention=(
        decodes(
            8, 1024, _FEW, ((8, 512), (1, 1000), (4, 128), (8, 60), (2, 700), (8, 900), (4, 300), (6, 200))
        ),
        decodes(4, 512, _ALONE, ((4, 500), (1, 100), (2, 300), (3, 400))),
        decodes(16, 512, _FEW, ((16, 500), (12, 100), (10, 300))),
        decodes(2, 2048, _WIDE, ((2, 1900), (1, 800), (2, 300))),
        decodes(1, 4096, _FEW, ((1, 4000), (1, 1500), (1, 300))),
        decodes(4, 1024, _PAIR, ((4, 900), (2, 500), (3, 200))),
        prefills(4, 64, _FEW, (4, 3)),
        prefills(2, 256, _FEW, (2,)),
        prefills(8, 128, _FEW, (8, 7)),
        prefills(1, 512, _FEW, (1,)),
        prefills(8, 32, _FEW, (8, 6)),
        prefills(2, 384, _ALONE, (2,)),
        prefills(2, 192, _WIDE, (2,)),
        prefills(1, 1024, _FEW, (1,)),
        prefills(4, 256, _PAIR, (4, 3)),
        prefills(1, 128, _FEW, (1,)),
        prefills(1, 320, _ALONE, (1,)),
    ),
    layers=tuple(
        (tokens, hidden) for hidden in (256, 512, 1024) for tokens in (1, 8, 32, 128, 256, 512, 1024)
    ),
    passes=(2**23, 2**24),
    messages=tuple(2**power for power in range(12, 25)),
)
"""Shapes of a CPU; the widths are those of models that it runs.

Its cache is measured in fp32 alone: writing to one of narrower numbers makes XLA widen the whole of it.
"""
_GROUPED, _SINGLE = Heads(8, 4, 128), Heads(8, 1, 128)
ACCELERATOR = Shapes(
    products=_products(
        (16, 1, 256, 64, 4096, 8, 1024, 128, 2048, 32, 512, 8192),
        ((4096, 4096), (4096, 6144), (4096, 28672), (14336, 4096), (8192, 8192), (2048, 8192), (5120, 5120)),
        56,
    ),
    attention=(
        decodes(64, 4096, _GROUPED, ((64, 4000), (8, 1000), (32, 300), (64, 1024), (1, 4096), (16, 2500))),
        decodes(8, 16384, _GROUPED, ((1, 16000), (8, 8000), (4, 4096), (2, 12000))),
        decodes(256, 1024, _GROUPED, ((256, 1000), (128, 200), (200, 500))),
        decodes(32, 4096, _SINGLE, ((32, 2048), (8, 4000), (16, 500))),
        prefills(8, 512, _GROUPED, (8, 1, 3)),
        prefills(4, 1024, _GROUPED, (4, 1)),
        prefills(2, 2048, _GROUPED, (2, 1)),
        prefills(8, 128, _GROUPED, (8, 2)),
        prefills(1, 4096, _GROUPED, (1,)),
        prefills(4, 256, _SINGLE, (4, 2)),
    ),
    layers=tuple((tokens, hidden) for hidden in (2048, 4096, 8192) for tokens in (1, 32, 256, 2048, 8192)),
    dtypes=("bf16", "fp32"),
    caches=("bf16", "fp32"),
    passes=(2**28,),
    messages=tuple(2**power for power in range(12, 28)),
)


def shapes_for(platform: str, quick: bool) -> Shapes:
    """Return what is measured of a platform."""
    if platform == "cpu":
        return QUICK if quick else DEFAULT
    return thinner(ACCELERATOR) if quick else ACCELERATOR


def thinner(shapes: Shapes) -> Shapes:
    """Return every second or third shape of each kind."""
    return replace(
        shapes,
        products=shapes.products[::3],
        attention=shapes.attention[::2],
        layers=shapes.layers[::2],
        messages=shapes.messages[::2],
    )
