"""Calibrate the device that JAX sees here: measure, fit with the machinery of all profiles, and write."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import msgspec

from kvroof.calibration.build import Fitting, build
from kvroof.calibration.fit import choose
from kvroof.calibration.load import efficiency_of, kernel_of
from kvroof.calibration.local.attention import forget
from kvroof.calibration.local.bench import Clock, Effort
from kvroof.calibration.local.collectives import messages
from kvroof.calibration.local.device import Device, Reached, load_average, local_device, propose
from kvroof.calibration.local.hardware_file import write_hardware
from kvroof.calibration.local.measured import MeasuredHere, busyness, reached, said
from kvroof.calibration.local.priors import local_prior
from kvroof.calibration.local.shapes import Shapes, shapes_for
from kvroof.calibration.profile import Calibration, Host, write_profile
from kvroof.catalog.profile import Profile
from kvroof.catalog.profiles import check_profile, hardware_of, load_profile
from kvroof.catalog.whole_file import writable
from kvroof.ground.errors import BadInput
from kvroof.ground.record import record, static
from kvroof.roofline.efficiency import Efficiency
from kvroof.spec.hardware import Hardware

FRAMEWORK = "jax"
"""What the profile calls what ran the kernels."""
SHARE = 0.65
"""Share of a family's points that are fitted; the others judge."""
QUICK = Effort(repeats=5, bench_s=0.4, limit_s=34.0)
THOROUGH = Effort(repeats=9, bench_s=2.0, limit_s=210.0)
BUSY = 0.25
"""Median over shortest repeat, less 1, beyond which the machine had other work."""
NEEDED = ("flax", "jaxtyping")


@record
class MeasuredKernel:
    """One measured kernel: what it did, its seconds, those of the profile, and whether it was fitted."""

    family: str = static()
    shape: str = static()
    flops: float
    hbm_bytes: float
    seconds: float
    predicted_s: float
    fitted: bool = static()


@record
class LocalCalibrated:
    """A profile measured here, where it lies, and its held-out errors as shares.

    `held_out_mape` is by family, of the points that were not fitted, None where there is none. `machine` and
    `rates` are what a plan is made with. `profile` is the hardware profile that goes with it, None where the
    catalog has the device. `busy` is how much longer the median repeat took than the shortest.
    """

    hardware: str = static()
    device: str = static()
    efficiency: Calibration = static()
    held_out_mape: dict[str, float | None]
    overall_mape: float | None
    points: int
    path: str | None = static(default=None)
    hardware_path: str | None = static(default=None)
    profile: Profile | None = static(default=None)
    machine: Hardware
    rates: Efficiency
    reached: Reached
    kernels: tuple[MeasuredKernel, ...]
    load: tuple[float | None, float | None] = static()
    busy: float
    seconds: float
    left_out: int = 0


def calibrate_local(
    *,
    quick: bool = False,
    shortest: bool = False,
    out: str | None = None,
    hardware_out: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> LocalCalibrated:
    """Return the calibration of the device that JAX computes on here, and write its profiles.

    Args:
        quick: Fewer shapes and repeats: under a minute, where the other way takes minutes.
        shortest: Take each kernel's shortest repeat, not the median: for a machine that has other work.
        out: The calibration profile to write; none is written without it.
        hardware_out: The hardware profile to write; beside `out` where the catalog lacks the device.
        progress: Told of each measurement: what it is, how many are done, how many there are.

    Raises:
        BadInput: A file that cannot be written, or libraries that are missing.
        Unsupported: A device that does not tell its memory.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed"
        raise BadInput(reason, where="calibrate", way_out="pip install 'kvroof[engine]'")
    device = local_device()
    places = _places(device, out, hardware_out)
    effort = replace(QUICK if quick else THOROUGH, shortest=shortest)
    return calibrate_shapes(
        device, shapes_for(device.platform, quick), effort, places=places, progress=progress
    )


def calibrate_shapes(
    device: Device,
    shapes: Shapes,
    effort: Effort,
    *,
    places: tuple[str | None, str | None] = (None, None),
    progress: Callable[[str, int, int], None] | None = None,
) -> LocalCalibrated:
    """Return the calibration of a device from the shapes that are asked for; see `calibrate_local`."""
    began, load = time.perf_counter(), load_average()
    benches = [*shapes.benches(device.llc_bytes), *messages(shapes.messages, device.count)]
    clock = Clock(effort, progress, len(benches) + 1)
    try:
        timings = tuple(clock.run(benches))
    finally:
        forget()
    best = reached(timings)
    when = f"{datetime.date.today().isoformat()}, jax {device.jax_version}"
    profile = load_profile(device.known) if device.known else _checked(propose(device, best, when))
    machine = hardware_of(profile)
    here = MeasuredHere(
        timings=timings,
        provenance=f"measured here, {when}, {device.kind}: {said(timings)}",
        version=f"jax {device.jax_version}",
        shortest=effort.shortest,
        link_bytes_per_s=best.link_bytes_per_s,
    )
    fitting = Fitting(share=SHARE, prior=local_prior, unlike=float("inf"))
    free = Host(step_s=0.0, seq_s=0.0, source="not measured yet")
    fitted = _halved(build(here, machine, FRAMEWORK, fitting=fitting, collectives=here, host=free))
    clock.tell("host", 0)
    fitted = msgspec.structs.replace(fitted, host=_host(machine, fitted, here, effort))
    clock.tell("host")
    busy, after = busyness(timings), load_average()
    fitted = msgspec.structs.replace(
        fitted, notes=(*fitted.notes, *_remarks(busy, load, device, len(clock.left_out), effort.shortest))
    )
    path, hardware_path = places
    if path is not None:
        write_profile(fitted, Path(path))
    if hardware_path is not None:
        write_hardware(profile, Path(hardware_path))
    tables = {name: fitted.kernels[name] for name in here.families}
    errors = {name: table.held_out_mape for name, table in tables.items()}
    known = [error for error in errors.values() if error is not None]
    return LocalCalibrated(
        hardware=machine.name,
        device=f"{device.kind}, {device.count} x {device.platform} under jax {device.jax_version}",
        efficiency=fitted,
        held_out_mape=errors | {name: wire.held_out_mape for name, wire in fitted.wires.items()},
        overall_mape=median(known) if known else None,
        points=sum(table.points for table in tables.values()) + sum(w.points for w in fitted.wires.values()),
        path=path,
        hardware_path=hardware_path,
        profile=None if device.known else profile,
        machine=machine,
        rates=efficiency_of(fitted),
        reached=best,
        kernels=_judged(here, fitted, machine, fitting),
        load=(load, after),
        busy=busy,
        seconds=time.perf_counter() - began,
        left_out=len(clock.left_out),
    )


def _halved(fitted: Calibration) -> Calibration:
    """Return the profile with attention over half-precision caches priced as over fp32, where that is all."""
    lent = {
        half: msgspec.structs.replace(fitted.kernels[wide], borrowed="fp32")
        for half in ("attention.decode", "attention.prefill")
        if half not in fitted.kernels and (wide := f"{half}.fp32") in fitted.kernels
    }
    return msgspec.structs.replace(fitted, kernels=dict(sorted((fitted.kernels | lent).items())))


def _judged(
    here: MeasuredHere, fitted: Calibration, machine: Hardware, fitting: Fitting
) -> tuple[MeasuredKernel, ...]:
    """Return every measured kernel beside what the profile makes of it."""
    found: list[MeasuredKernel] = []
    for points in here.points(machine, FRAMEWORK):
        predicted = points.predict(kernel_of(fitted.kernels[points.family]))
        chosen = set(choose(points, fitting.of(points), local_prior(points.family).mean).tolist())
        for index, timing in enumerate(here.family(points.family)):
            found.append(
                MeasuredKernel(
                    family=points.family,
                    shape=timing.bench.shape,
                    flops=float(points.flops[index]),
                    hbm_bytes=float(points.hbm_bytes[index]),
                    seconds=float(points.seconds[index]),
                    predicted_s=float(predicted[index]),
                    fitted=index in chosen,
                )
            )
    return tuple(found)


def _host(machine: Hardware, fitted: Calibration, here: MeasuredHere, effort: Effort) -> Host:
    from kvroof.calibration.local.host import host_times

    return host_times(
        machine, efficiency_of(fitted), here.dispatch_s, effort.repeats, shortest=effort.shortest
    )


def _checked(profile: Profile) -> Profile:
    """Return a proposed profile after the loader's own checks."""
    return check_profile(profile.as_dict(), "the measured hardware")


def _remarks(
    busy: float, load: float | None, device: Device, left_out: int, shortest: bool
) -> tuple[str, ...]:
    """Return what is to be known of how it was measured."""
    said = ["of each kernel the shortest repeat was taken, not the median"] if shortest else []
    if busy > BUSY:
        least = f", {load:.1f} processes on {device.cores} cores" if load is not None and device.cores else ""
        said.append(
            f"the machine was busy: the median repeat took {busy:.0%} longer than the shortest{least}"
        )
        if not shortest:
            said.append("calibrate --shortest takes the shortest repeats, which other work disturbs least")
    if left_out:
        said.append(f"{left_out} programs were left out for want of time")
    if device.platform == "cpu":
        said.append(
            "products of one or two rows were not measured: XLA does not pack the matrix for them, and takes "
            "up to 4 times less than predicted"
        )
    if device.count == 1:
        said.append("one device: no collective was measured")
    return tuple(said)


def _places(device: Device, out: str | None, hardware_out: str | None) -> tuple[str | None, str | None]:
    """Return the files to write, checked before anything is measured.

    Raises:
        BadInput: Not a `.toml` file, the same file twice, or a folder that is not there.
    """
    if hardware_out is None and out is not None and device.known is None:
        hardware_out = f"{out.removesuffix('.toml')}-hardware.toml"
    for name, option in ((out, "--out"), (hardware_out, "--hardware-out")):
        if name is not None:
            writable(name, (".toml",), option)
    if out is not None and out == hardware_out:
        raise BadInput("is the calibration's own file", where="--hardware-out", way_out="name another")
    return out, hardware_out
