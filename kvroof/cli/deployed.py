"""The options that say how a model is deployed, as one value that makes plans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.cli import options
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.spec.hardware import Hardware
from kvroof.spec.parallel import Layout


class Deployed(NamedTuple):
    """How a model is laid over devices, stored, and priced."""

    layout: Layout
    kv_dtype: str
    weights_dtype: str
    calibration: str
    ignore_keys: tuple[str, ...]

    def efficiencies(self, machines: Iterable[Hardware]) -> dict[str, Efficiency]:
        """Return what each of the machines is priced with, by its name."""
        from kvroof.calibration.load import efficiencies

        return efficiencies(self.calibration, [machine.name for machine in machines])

    def plan(self, model: str, hw: str) -> Plan:
        """Return the deployment of a model on a machine.

        Raises:
            BadInput: A name, layout or dtype that cannot be.
        """
        return self.plans(model, [hw])[0]

    def plans(self, model: str, hws: Iterable[str]) -> list[Plan]:
        """Return the deployments of a model on machines that are compared, each priced by the same rule.

        Raises:
            BadInput: A name, layout or dtype that cannot be.
        """
        arch = load_model(model, ignore_keys=self.ignore_keys)
        machines = [load_hardware(hw) for hw in hws]
        priced = self.efficiencies(machines)
        return [
            Plan.of(
                arch,
                machine,
                layout=self.layout,
                kv_dtype=self.kv_dtype,
                weights_dtype=self.weights_dtype,
                efficiency=priced[machine.name],
            )
            for machine in machines
        ]


deployment = options.gathered(
    "deployed",
    Deployed,
    options.parallel,
    options.kv_dtype,
    options.weights_dtype,
    options.calibrated,
    options.ignore_key,
)
DEPLOYED = (*options.LAYOUT, "kv_dtype", "weights_dtype", "calibration", "ignore_keys")
"""The names of the options in a command's context."""
