"""Which physical block holds which tokens: the block tables, and the pool they point into."""

from __future__ import annotations

from collections.abc import Sequence

from plotly.graph_objects import Figure, Heatmap
from plotly.subplots import make_subplots

from kvroof.memory.blocks import HOLE, Blocks
from kvroof.view.theme import COLOURS, INK, Axis, frame, look_of, tint

COLUMNS = 16
MOST_BLOCKS = 1024
CELL_PX = 30
FREE, SHARED, DROPPED = "white", "#CCCCCC", "#F5F5F5"


def block_tables(blocks: Blocks, asked: str) -> Figure:
    """Return the block table of every sequence above the pool of physical blocks.

    A cell of a table says which physical block it is, and how full where it is not; a cell of the pool which
    sequences hold it. A colour is a sequence; a block that several hold is grey.

    Args:
        blocks: The pool, none of its sequences swapped out.
        asked: What the sequences are, in words.
    """
    owners = _owners(blocks)
    shared = sum(len(held) > 1 for held in owners.values())
    sequences = blocks.sequences
    columns = min(COLUMNS, blocks.num_blocks)
    wide = max([len(blocks.block_table(seq)) for seq in sequences] + [columns])
    rows = -(-blocks.num_blocks // columns)
    head = frame(
        f"{len(sequences)} sequences hold {blocks.used_blocks} of {blocks.num_blocks} blocks"
        + (f", {shared} of them shared" if shared else ""),
        Axis("logical block of the sequence (number)"),
        Axis("sequence", "category"),
        [
            asked,
            f"{blocks.block_size} tokens in a block",
            "a cell names the physical block, and its tokens where it is not full",
            "in the pool a cell names the sequences that hold it",
        ],
        alt=f"Block tables of {len(sequences)} sequences and the pool of {blocks.num_blocks} physical blocks",
    )
    heights = [len(sequences) or 1, rows]
    figure = make_subplots(rows=2, vertical_spacing=0.2, row_heights=heights, figure=head)
    colour = {seq: 2 + number % len(COLOURS) for number, seq in enumerate(sequences)}
    table = [_table_row(blocks, seq, owners, colour[seq], wide) for seq in sequences]
    figure.add_trace(
        _cells(table, list(range(wide)), [str(seq) for seq in sequences], "block tables"), row=1, col=1
    )
    pool = [
        [_pool_cell(owners, colour, row * columns + column, blocks.num_blocks) for column in range(columns)]
        for row in range(rows)
    ]
    starts = [str(row * columns) for row in range(rows)]
    figure.add_trace(_cells(pool, list(range(columns)), starts, "physical blocks"), row=2, col=1)
    figure.update_xaxes(look_of(head.layout.xaxis) | {"dtick": 1, "showgrid": False})
    figure.update_yaxes(look_of(head.layout.yaxis) | {"autorange": "reversed", "showgrid": False})
    figure.update_xaxes(title_text="physical block (number, from the start of its row)", row=2)
    figure.update_yaxes(title_text="first of row", row=2)
    figure.update_layout(height=300 + CELL_PX * sum(heights))
    return figure


def _owners(blocks: Blocks) -> dict[int, list[int]]:
    """Return which sequences hold each physical block."""
    found: dict[int, list[int]] = {}
    for seq in blocks.sequences:
        for block in blocks.block_table(seq):
            if block != HOLE:
                found.setdefault(block, []).append(seq)
    return found


def _table_row(
    blocks: Blocks, seq: int, owners: dict[int, list[int]], colour: int, wide: int
) -> list[tuple[int, str]]:
    """Return colour and text of each logical block of a sequence."""
    cells = []
    table, size = blocks.block_table(seq), blocks.block_size
    for logical, block in enumerate(table):
        tokens = min(size, blocks.tokens(seq) - logical * size)
        if block == HOLE:
            cells.append((0, "dropped"))
            continue
        text = f"{block}" if tokens == size else f"{block} ({tokens}/{size})"
        cells.append((1 if len(owners[block]) > 1 else colour, text))
    return cells + [(0, "")] * (wide - len(cells))


def _pool_cell(
    owners: dict[int, list[int]], colour: dict[int, int], block: int, num_blocks: int
) -> tuple[int, str]:
    if block >= num_blocks:
        return 0, ""
    held = owners.get(block, [])
    if not held:
        return 0, "free"
    return (1, "+".join(map(str, held))) if len(held) > 1 else (colour[held[0]], str(held[0]))


def _cells(rows: Sequence[Sequence[tuple[int, str]]], x: list[int], y: list[str], name: str) -> Heatmap:
    """Return a grid of coloured cells with their text."""
    colours = [FREE, SHARED, *(tint(colour) for colour in COLOURS)]
    last = len(colours) - 1
    steps = [(min(i / last, 1), colour) for i, colour in enumerate(colours)]
    return Heatmap(
        x=x,
        y=y,
        z=[[cell[0] for cell in row] for row in rows],
        text=[[cell[1] for cell in row] for row in rows],
        texttemplate="%{text}",
        textfont={"color": INK, "size": 12},
        colorscale=steps,
        zmin=0,
        zmax=last,
        showscale=False,
        xgap=2,
        ygap=2,
        name=name,
        hovertemplate="%{y}, %{x}: %{text}<extra>%{fullData.name}</extra>",
    )
