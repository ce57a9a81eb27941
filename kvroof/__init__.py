"""kvroof: does it fit, how fast can it run, what bounds it. Exact bytes and roofline times."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvroof.catalog.models import load_model as load_model
    from kvroof.catalog.models import model_names as model_names
    from kvroof.catalog.profiles import hardware_names as hardware_names
    from kvroof.catalog.profiles import load_hardware as load_hardware
    from kvroof.ground.errors import BadInput as BadInput
    from kvroof.ground.errors import KvroofError as KvroofError
    from kvroof.ground.errors import UnknownName as UnknownName
    from kvroof.ground.errors import Unsupported as Unsupported
    from kvroof.ground.numeric import relax as relax
    from kvroof.memory.kv import KVReport as KVReport
    from kvroof.memory.kv import kv as kv
    from kvroof.memory.ledger import Ledger as Ledger
    from kvroof.memory.ledger import fit as fit
    from kvroof.roofline.plan import Plan as Plan
    from kvroof.serving.comparison import Comparison as Comparison
    from kvroof.serving.comparison import compare as compare
    from kvroof.serving.latency import Estimate as Estimate
    from kvroof.serving.latency import estimate as estimate
    from kvroof.spec.architecture import Architecture as Architecture
    from kvroof.spec.hardware import Hardware as Hardware

__version__ = "0.1.0"

_HOME = {
    "Architecture": "kvroof.spec.architecture",
    "BadInput": "kvroof.ground.errors",
    "Comparison": "kvroof.serving.comparison",
    "Estimate": "kvroof.serving.latency",
    "Hardware": "kvroof.spec.hardware",
    "KVReport": "kvroof.memory.kv",
    "KvroofError": "kvroof.ground.errors",
    "Ledger": "kvroof.memory.ledger",
    "Plan": "kvroof.roofline.plan",
    "UnknownName": "kvroof.ground.errors",
    "Unsupported": "kvroof.ground.errors",
    "compare": "kvroof.serving.comparison",
    "estimate": "kvroof.serving.latency",
    "fit": "kvroof.memory.ledger",
    "hardware_names": "kvroof.catalog.profiles",
    "kv": "kvroof.memory.kv",
    "load_hardware": "kvroof.catalog.profiles",
    "load_model": "kvroof.catalog.models",
    "model_names": "kvroof.catalog.models",
    "relax": "kvroof.ground.numeric",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562), so that `import kvroof` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'kvroof' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
