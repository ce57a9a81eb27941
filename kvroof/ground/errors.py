"""The error tree: every failure a user can cause names the place, the key, the reason and the way out."""

from __future__ import annotations


class KvroofError(Exception):
    """A failure with a reason a person can act on.

    Args:
        reason: What is wrong, in one clause.
        where: The file, option or record it was found in.
        key: The key inside `where`.
        way_out: What would put it right.
    """

    def __init__(
        self,
        reason: str,
        *,
        where: str | None = None,
        key: str | None = None,
        way_out: str | None = None,
    ) -> None:
        self.reason, self.where, self.key, self.way_out = reason, where, key, way_out
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """Return `where: key: reason; way out` as a single printable line."""
        head = ": ".join(_clip(part, 160) for part in (self.where, self.key) if part)
        reason = _clip(self.reason, 320)
        text = f"{head}: {reason}" if head else reason
        return f"{text}; {_clip(self.way_out, 160)}" if self.way_out else text


class BadInput(KvroofError):
    """A value, file or option that cannot be used as given."""


class Unsupported(KvroofError):
    """Well-formed input that kvroof does not model; it is refused rather than guessed."""


class UnknownName(BadInput):
    """A model, machine or verb that is not in the catalog."""


def _clip(text: str, limit: int) -> str:
    """Return `text` on one line with unprintable characters escaped, at most `limit` long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return line if len(line) <= limit else line[: limit - 3] + "..."
