"""Figures as PNG and SVG, for print: drawn by plotly's own renderer in a browser that stays closed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from plotly.graph_objects import Figure

from kvroof.ground.errors import BadInput
from kvroof.view.theme import HEIGHT_PX, WIDTH_PX

SCALE = 2
"""Pixels of a PNG per pixel of the layout."""


def picture(figure: Figure, form: Literal["png", "svg"]) -> bytes:
    """Return a figure as a PNG or SVG file, without asking the network for anything.

    Raises:
        BadInput: Kaleido, or a Chrome that it can use, is not installed, or does not start.
    """
    if find_spec("kaleido") is None:
        raise BadInput(
            "kaleido is not installed, which draws .png and .svg",
            where="--out",
            way_out="pip install 'kvroof[images]', and a Chrome or Chromium; or write .html",
        )
    kaleido, errors = import_module("kaleido"), import_module("kaleido.errors")
    size: dict[str, Any] = {"width": WIDTH_PX, "height": figure.layout.height or HEIGHT_PX}
    try:
        drawn: bytes = kaleido.calc_fig_sync(
            figure.to_dict(),
            opts={"format": form, "scale": SCALE if form == "png" else 1, **size},
            kopts={"mathjax": False},
        )
    except errors.ChromeNotFoundError:
        raise BadInput(
            "no Chrome or Chromium is installed, in which .png and .svg are drawn",
            where="--out",
            way_out="apt-get install chromium, or kaleido_get_chrome; or write .html",
        ) from None
    except (errors.BrowserFailedError, errors.BrowserClosedError):
        raise BadInput(
            "the Chrome that is installed does not start, in which .png and .svg are drawn",
            where="--out",
            way_out="kaleido_get_chrome brings one that does; or write .html",
        ) from None
    return drawn
