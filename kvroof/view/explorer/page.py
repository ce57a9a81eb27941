"""The explorer: one static page with the whole model in it, that needs no server and no network."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from typing import Any

from kvroof import __version__
from kvroof.view.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION

SCRIPTS = ("model.js", "words.js", "choice.js", "charts.js", "app.js")
"""The page's parts in the order they run: what it knows, then how it says it."""
_COLOURS = {
    "blue": BLUE,
    "vermillion": VERMILLION,
    "green": GREEN,
    "orange": ORANGE,
    "purple": PURPLE,
    "sky": SKY,
    "black": BLACK,
    "alarm": "#a34600",  # vermillion, dark enough for text
}


def explorer_page(tables: Mapping[str, Any]) -> str:
    """Return the page as HTML, with everything that it needs inside.

    Args:
        tables: Models and machines, as `kvroof.search.tables.explorer_tables` returns them.
    """
    data = json.dumps(tables, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    colours = "".join(f"--{name}:{value};" for name, value in _COLOURS.items())
    parts = {
        "version": __version__,
        "style": f":root{{{colours}}}\n{script('style.css')}",
        "script": "\n".join(script(name) for name in SCRIPTS),
        "tables": data,
    }
    page = script("page.html")
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text)
    return page


def script(name: str) -> str:
    """Return a part of the page: a script, the style, or the frame that holds them."""
    data = pkgutil.get_data(__package__, name)
    assert data is not None, name
    return data.decode("utf-8")
