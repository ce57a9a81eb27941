"""Hardware profiles: `hardware/*.toml` or a user's own file, read and checked in one go.

The loader is the checker. Every number is a table of `value` and `source`; a peak also says
`density = "dense"`, a link rate `direction = "one-way"`. Base units only: bytes, bytes/s, FLOP/s, W.
`disputed` keeps the claims of other sources; `confused_with` names figures that pass for the value
(with sparsity, both ways, another part), so that `source` and `note` speak of the value alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvroof.catalog.bounded import read_bytes
from kvroof.catalog.names import closest, data_folder, nearby
from kvroof.catalog.profile import LinkTable, Peak, Profile, Quantity, Rate
from kvroof.catalog.profile_schema import EXAMPLE, MEASURED, Fault, conform
from kvroof.ground.errors import BadInput, UnknownName
from kvroof.spec.hardware import Hardware, Link

MAX_BYTES = 10**6
MAX_TEXT = 500
MAX_RATIO = {
    "fp32": 1.1, "tf32": 1.1, "bf16": 1.1, "fp16": 1.1,
    "fp8": 2.2, "int8": 2.2, "fp6": 4.4, "fp4": 4.4, "int4": 4.4,
}  # fmt: skip
"""The most a dense peak exceeds bf16's (else fp16's) on chips whose rates double with each halving."""
ODDEST_RATIO = 16.0
"""The most that a `ratio_reason` can explain."""

_WHAT = "a machine's .toml file, or a name of `kvroof list hardware`"
_MAKER = re.compile(r"(?i)^\s*(?:nvidia|amd|intel|google|apple|aws)[\s_-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,63}")
_DENIED = re.compile(r"(?i)\b(?:no|not|non|without|excluding)[\s-]+(?:structured\s+|2:4\s+)?spars\w*")
_SPARSE = re.compile(r"(?i)spars|\b2:4\b")
_LEAST_AND_MOST = {
    **dict.fromkeys(("memory_bytes", "visible_memory_bytes"), (1e8, 1e14, "bytes")),
    "hbm_bytes_per_s": (1e8, 1e14, "bytes per second"),
    "peak_flops_per_s": (1e9, 1e18, "FLOP per second"),
    **dict.fromkeys(("bytes_per_s", "peer_bytes_per_s"), (1e6, 1e13, "bytes per second")),
    **dict.fromkeys(("domain", "links", "cores"), (1, 1e6, "units")),
    "tdp_w": (0.1, 1e5, "watts"),
    "llc_bytes": (1e4, 1e11, "bytes"),
}


def hardware_names() -> list[str]:
    """Return the catalog's machine names, sorted."""
    return sorted(path.stem for path in data_folder("hardware").glob("*.toml"))


def load_hardware(name_or_path: str) -> Hardware:
    """Return the machine with that catalog name or alias, or in that `.toml` file; see `load_profile`."""
    return hardware_of(load_profile(name_or_path))


def load_profile(name_or_path: str) -> Profile:
    """Return the checked profile with that catalog name or alias, or in that `.toml` file.

    Raises:
        UnknownName: Neither in the catalog nor a file; the closest names are the way out.
        BadInput: The file cannot be read, or a value in it cannot be used.
    """
    path = _find(name_or_path)
    return check_profile(_read_toml(path), str(path))


def check_profile(data: dict[str, Any], where: str) -> Profile:
    """Return the profile in parsed TOML, every value of it checked; errors call it `where`.

    Raises:
        BadInput: Unknown, missing, mistyped, undeclared, unsourced or implausible values, all of them.
    """
    profile, faults = conform(data, lambda: _read_toml(data_folder("hardware") / "h100-sxm.toml"))
    if profile is not None:
        mended = tuple(key for key, *_ in faults)
        faults += (fault for fault in _faults(profile) if not fault[0].startswith(mended))
        faults += _proportion_faults(profile) if not faults else ()
    if profile is None or faults:
        raise _refusal(faults, where)
    return profile


def hardware_of(profile: Profile) -> Hardware:
    """Return the numbers of a profile as the record that cost and time are computed from."""
    visible, llc, cores, tdp = profile.visible_memory_bytes, profile.llc_bytes, profile.cores, profile.tdp_w
    return Hardware(
        name=profile.name,
        vendor=profile.vendor,
        memory_bytes=profile.memory_bytes.value,
        visible_memory_bytes=visible.value if visible else None,
        hbm_bytes_per_s=profile.hbm_bytes_per_s.value,
        peak_flops_per_s={dtype: peak.value for dtype, peak in profile.peak_flops_per_s.given().items()},
        scale_up=_link(profile.scale_up),
        scale_out=_link(profile.scale_out),
        host=_link(profile.host),
        tdp_w=tdp.value if tdp else None,
        llc_bytes=llc.value if llc else None,
        cores=cores.value if cores else None,
        unified_memory=profile.unified_memory,
        disagreements=profile.disagreements(),
    )


def _link(table: LinkTable | None) -> Link | None:
    if table is None:
        return None
    return Link(
        name=table.name,
        bytes_per_s=table.bytes_per_s.value,
        domain=table.domain.value if table.domain else None,
        reduces_in_switch=table.reduces_in_switch is not None and table.reduces_in_switch.value,
    )


def _find(name_or_path: str) -> Path:
    """Return the file of a catalog name, of an alias, or at a path."""
    wanted = " ".join(name_or_path.lower().split())
    files = {name: data_folder("hardware") / f"{name}.toml" for name in hardware_names()}
    if wanted in files:
        return files[wanted]
    if not wanted.endswith(".toml"):
        aliases = {alias.lower(): path for path in files.values() for alias in _aliases(path)}
        if wanted in aliases:
            return aliases[wanted]
        if not re.search(r"[/\\]", name_or_path) and not os.path.exists(name_or_path):
            way_out = f"{near_machines(name_or_path)} see `kvroof list hardware`".strip()
            raise UnknownName("no such machine, and no such file", where=name_or_path, way_out=way_out)
    return Path(name_or_path)


def near_machines(name: str) -> str:
    """Return which machines `name` may have meant, beside it or in the catalog; empty if none is near.

    A maker's name before it is passed over. Of boards with one chip those in sockets come first.
    """
    names = sorted(hardware_names(), key=lambda known: "-sxm" not in known)
    aliases = (alias for known in names for alias in _aliases(data_folder("hardware") / f"{known}.toml"))
    bare = _MAKER.sub("", name)
    return closest(name, nearby(name, ".toml")) or closest(bare, names) or closest(bare, aliases)


def _aliases(path: Path) -> tuple[str, ...]:
    """Return the aliases of a catalog file; only what stands before its first table is parsed."""
    import tomllib

    return tuple(tomllib.loads(path.read_text("utf-8").partition("\n[")[0]).get("aliases", ()))


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file of reasonable size."""
    import tomllib

    where = str(path)
    try:
        return tomllib.loads(read_bytes(path, MAX_BYTES, _WHAT).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else f"not readable as TOML ({error})"
        raise BadInput(reason, where=where, way_out=EXAMPLE) from None


def _refusal(faults: list[Fault], where: str) -> BadInput:
    """Return faults as one error, those of one kind together."""
    if len(faults) == 1:
        ((key, reason, way_out),) = faults
        return BadInput(reason, where=where, key=key, way_out=way_out)
    keys: dict[str, list[str]] = {}
    for key, reason, way_out in faults:
        hint = f" ({way_out})" if reason == "unknown key" else ""
        keys.setdefault(reason + hint, []).append(key)
    said = "; ".join(f"{', '.join(dict.fromkeys(named))}: {reason}" for reason, named in keys.items())
    return BadInput(said, where=where, way_out=EXAMPLE)


def _faults(profile: Profile) -> Iterator[Fault]:
    """Yield what is wrong with a well-formed profile, value by value: the key, the reason and the way out."""
    yield from _name_faults(profile)
    for key, held in profile.quantities():
        yield from _value_faults(key, held)
        yield from _text_faults(key, held)
        if isinstance(held, Peak):
            yield from _density_faults(key, held)
        if isinstance(held, Rate) and held.direction != "one-way":
            way_out = 'halve a both-way total, then write direction = "one-way"'
            yield f"{key}.direction", "is not declared one-way", way_out


def _name_faults(profile: Profile) -> Iterator[Fault]:
    named = [("name", profile.name), ("vendor", profile.vendor), *(("aliases", a) for a in profile.aliases)]
    named += [(f"{key}.name", table.name) for key, table in profile.links()]
    for key, text in named:
        if not _NAME.fullmatch(text):
            yield key, f"{text!r} is not a name", "use letters, digits, space and . _ + - ( ) /"
    for text in (*profile.notes, *profile.open_questions):
        yield from _line_faults("notes or open_questions", text)


def _text_faults(key: str, held: Quantity) -> Iterator[Fault]:
    """Yield blank sources and notes, also those of claims and of other figures."""
    lines = [(field, getattr(held, field, None)) for field in ("source", "also", "note", "ratio_reason")]
    lines += [("disputed.source", claim.source) for claim in held.disputed]
    lines += [("disputed.note", claim.note) for claim in held.disputed]
    lines += [("confused_with.reason", other.reason) for other in held.confused_with]
    for field, text in lines:
        yield from _line_faults(f"{key}.{field}", text)


def _line_faults(key: str, text: str | None) -> Iterator[Fault]:
    if text is not None and not (text.strip() and text.isprintable() and len(text) <= MAX_TEXT):
        way_out = MEASURED if key.endswith("source") else "write one short line, or leave it out"
        yield key, f"is empty, unprintable or longer than {MAX_TEXT} characters", way_out


def _value_faults(key: str, held: Quantity) -> Iterator[Fault]:
    """Yield what is not a positive number of plausible size; a slip of 1000 usually is not."""
    head, _, tail = key.partition(".")
    least, most, unit = _LEAST_AND_MOST[tail if tail in _LEAST_AND_MOST else head]
    given = [("value", held.value), *(("disputed.value", claim.value) for claim in held.disputed)]
    given += [("confused_with.value", other.value) for other in held.confused_with]
    for field, value in given:
        if not 0 < value < float("inf"):
            yield f"{key}.{field}", f"{max(value, -1e300):g} is not a positive number", f"give {unit}"
        elif not least <= value <= most:
            reason = f"{min(value, 1e300):g} is outside {least:g} to {most:g} {unit}"
            yield f"{key}.{field}", reason, f"give plain {unit}, without K, M, G or T"
    if any(other.value == held.value for other in held.confused_with):
        yield f"{key}.value", "equals a figure that confused_with says it is not", "correct one of the two"


def _density_faults(key: str, peak: Peak) -> Iterator[Fault]:
    if peak.density != "dense":
        yield f"{key}.density", "is not declared dense", 'give the dense figure and density = "dense"'
    for field in ("source", "also", "note"):
        if _SPARSE.search(_DENIED.sub("", getattr(peak, field) or "")):
            way_out = "give the dense figure; other figures belong in confused_with"
            yield f"{key}.{field}", "speaks of sparsity beside a dense peak", way_out


def _proportion_faults(profile: Profile) -> Iterator[Fault]:
    """Yield numbers that are each possible and together are not."""
    peaks = profile.peak_flops_per_s.given()
    base = next((dtype for dtype in ("bf16", "fp16", "fp32") if dtype in peaks), None)
    if base is None:
        yield "peak_flops_per_s", "has no bf16, fp16 or fp32 peak", "add [peak_flops_per_s.bf16]"
        return
    for dtype, peak in peaks.items():
        ratio = peak.value / peaks[base].value
        if ratio > (ODDEST_RATIO if base == "fp32" or peak.ratio_reason else MAX_RATIO[dtype]):
            way_out = "halve a figure with sparsity; a true dense one says why in ratio_reason"
            yield f"peak_flops_per_s.{dtype}", f"{ratio:.3g} times {base} is implausible as dense", way_out
    memory, visible = profile.memory_bytes.value, profile.visible_memory_bytes
    if visible and not 0.5 <= visible.value / memory <= 1.1:
        reason = f"is far from memory_bytes, {memory}"
        yield "visible_memory_bytes.value", reason, "give bytes; 1 MiB is 2**20"
    for key, table in profile.links():
        if table.peer_bytes_per_s and table.peer_bytes_per_s.value > table.bytes_per_s.value:
            yield f"{key}.peer_bytes_per_s.value", "exceeds bytes_per_s", "give the rate to one peer, one way"
