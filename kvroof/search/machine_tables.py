"""Machines and calibrations as data: their numbers, and the price of an operation as expressions over them.

`roofline` is run on symbols once for every form that a price takes. A machine, a fitted kernel or a wire is
then a row of numbers that a form is evaluated with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from kvroof.calibration.load import PREFERRED, find_profile, load_calibration
from kvroof.cost.op import Collective, Op
from kvroof.ground.errors import Unsupported
from kvroof.roofline.collectives import links_used
from kvroof.roofline.efficiency import IDENTITY, Efficiency, Kernel, Wire
from kvroof.roofline.roofline import arithmetic, price
from kvroof.search.expressions import Pool, Tape
from kvroof.spec.hardware import Hardware, Link

Data: TypeAlias = dict[str, Any]

KERNEL = ("t0_s", "hbm", "compute", "sharpness", "item_s", "depth_s", "score_s", "depth_power")
"""Parameters of a kernel, in the order of its row. Without a `sharpness` the maximum is hard."""
WIRE = ("ring_s", "per_rank", "net", "crowding", "start_s")
LINKS = ("scale_up", "scale_out", "host")
WORK = (
    "count", "launches", "flops", "weight_bytes", "kv_bytes", "activation_bytes", "items", "depth", "scores",
)  # fmt: skip
PRICED = ("seconds", "compute_s", "hbm_s", "overhead_s", "excess_s")
"""What a price of an operation says, as lines of its tape."""
SENT = ("network_s", "net_bytes")
"""The same of a collective."""


class Asked(NamedTuple):
    """What the models' operations need of a machine: the dtypes, kernels and collectives that they name."""

    compute: tuple[str, ...]
    families: tuple[str, ...]
    collectives: tuple[Collective, ...]
    ranks: tuple[int, ...]


def kernel_forms() -> Data:
    """Return the price of an operation on a device, with a hard and with a soft maximum.

    The inputs are the operation's work, the kernel's parameters, and the machine's `peak_flops_per_s` and
    `hbm_bytes_per_s`.
    """
    tape = Tape((*WORK, *KERNEL, "peak_flops_per_s", "hbm_bytes_per_s"))
    op = Op(name="op", kind="gemm", compute=("any",), family="any", **{n: tape.symbol(n) for n in WORK})
    machine = Hardware(
        name="machine",
        vendor="any",
        memory_bytes=0,
        hbm_bytes_per_s=tape.symbol("hbm_bytes_per_s"),
        peak_flops_per_s={"any": tape.symbol("peak_flops_per_s")},
    )
    soft = Kernel(**{name: tape.symbol(name) for name in KERNEL})
    forms = {}
    for name, kernel in (("hard", replace(soft, sharpness=None)), ("soft", soft)):
        priced = price(op, machine, Efficiency(kernels={"any": kernel}))
        forms[name] = [tape.line(getattr(priced, answer)) for answer in PRICED]
    return {**forms, "tape": tape.program()}


class Collectives:
    """The prices of collectives, every form once: over a message, a wire's parameters and links' rates."""

    def __init__(self) -> None:
        self.tape = Tape(("count", "message_bytes", *WIRE, *LINKS))
        self.forms: dict[tuple[int, ...], int] = {}

    def form(self, kind: Collective, ranks: int, machine: Hardware, wire: Wire) -> int:
        """Return the number of the form in which a machine's collective is priced.

        Raises:
            Unsupported: No link among that many devices is known.
        """
        tape = self.tape
        op = Op(
            name=kind,
            kind="collective",
            collective=kind,
            ranks=ranks,
            count=tape.symbol("count"),
            message_bytes=tape.symbol("message_bytes"),
        )
        given = {name: tape.symbol(name) for name in WIRE if getattr(wire, name) is not None}
        traced = replace(wire, **given)
        priced = price(op, self._traced(machine), Efficiency(wires={kind: traced}))
        lines = tuple(tape.line(getattr(priced, answer)) for answer in SENT)
        return self.forms.setdefault(lines, len(self.forms))

    def _traced(self, machine: Hardware) -> Hardware:
        """Return a machine with symbols for the rates of its links, whose domains are structure."""
        links: dict[str, Link | None] = {}
        for name in LINKS:
            link: Link | None = getattr(machine, name)
            links[name] = None if link is None else replace(link, bytes_per_s=self.tape.symbol(name))
        return replace(machine, scale_up=links["scale_up"], scale_out=links["scale_out"], host=links["host"])

    def table(self) -> Data:
        """Return the forms as plain data."""
        return {"forms": [list(lines) for lines in self.forms], "tape": self.tape.program()}


def machine_table(name: str, machine: Hardware, asked: Asked, collectives: Collectives, pool: Pool) -> Data:
    """Return a machine as plain data: numbers, arithmetic, links, and what its operations are timed with.

    Args:
        name: What it is called.
        machine: The machine.
        asked: What the models' operations need of it.
        collectives: Where the forms of its collectives are kept.
        pool: Where the rows of parameters are kept.
    """
    return {
        "name": name,
        "vendor": machine.vendor,
        "capacity_bytes": machine.capacity_bytes,
        "nominal": machine.visible_memory_bytes is None,
        "hbm_bytes_per_s": machine.hbm_bytes_per_s,
        "peak_flops_per_s": dict(machine.peak_flops_per_s),
        "arithmetic": {choices: _arithmetic(choices, machine) for choices in asked.compute},
        "links": [link.bytes_per_s if (link := getattr(machine, name)) else 0 for name in LINKS],
        "joined": {str(ranks): _joined(machine, ranks) for ranks in asked.ranks if ranks > 1},
        "times": [
            _times(machine, profile, asked, collectives, pool)
            for profile in ("none", *profiles(machine.name))
        ],
        "disagreements": list(machine.disagreements),
    }


def profiles(machine: str) -> list[str]:
    """Return the calibrations of a machine, or of its nearest measured relative: what `auto` takes first."""
    found = (find_profile("auto", machine, framework) for framework in PREFERRED)
    return list(dict.fromkeys(profile.name for profile in found if profile is not None))


def _arithmetic(choices: str, machine: Hardware) -> str | None:
    """Return the dtype that operations with these choices multiply in; None where the chip has none."""
    op = Op(name="op", kind="gemm", count=1, compute=tuple(choices.split("/")))
    try:
        return arithmetic(op, machine)
    except Unsupported:
        return None


def _joined(machine: Hardware, ranks: int) -> str | None:
    try:
        return links_used(machine, ranks)
    except Unsupported:
        return None


def _times(machine: Hardware, profile: str, asked: Asked, collectives: Collectives, pool: Pool) -> Data:
    """Return what a machine's operations are priced with under a calibration, `none` for bounds."""
    efficiency = load_calibration(profile, machine.name) or IDENTITY
    wanted = (*asked.families, *asked.collectives, "host")
    wires = {kind: efficiency.wire(kind) for kind in asked.collectives}
    return {
        "calibration": profile,
        "name": efficiency.name,
        "held_out_mape": efficiency.held_out_mape,
        "notes": pool.number(efficiency.notes),
        "host_step_s": efficiency.host_step_s,
        "host_seq_s": efficiency.host_seq_s,
        "kernels": {
            family: pool.number(_row(efficiency.kernel(family), KERNEL)) for family in asked.families
        },
        "wires": {kind: pool.number(_row(wire, WIRE)) for kind, wire in wires.items()},
        "sent": {
            kind: {
                str(ranks): collectives.form(kind, ranks, machine, wire)
                for ranks in asked.ranks
                if ranks > 1 and _joined(machine, ranks)
            }
            for kind, wire in wires.items()
        },
        "sigma": {name: sigma for name in wanted if (sigma := efficiency.spread(name))},
    }


def _row(fitted: Kernel | Wire, names: Sequence[str]) -> list[float | None]:
    return [getattr(fitted, name) for name in names]
