"""The `kvroof` command: finds the verb, imports only that, and turns errors into one line and exit 2."""

from __future__ import annotations

import io
import os
import sys
from typing import ClassVar

import click

from kvroof import __version__
from kvroof.cli.lazy import Lazy
from kvroof.ground.errors import KvroofError

VERBS = (
    "list", "show", "kv", "fit", "estimate", "compare", "optimize", "disagg", "simulate", "calibrate",
    "engine", "validate", "plot", "report", "explore", "doctor",
)  # fmt: skip


class Verbs(Lazy):
    """The verbs, each in the module of its name."""

    places: ClassVar = {verb: ("listing" if verb == "list" else verb, "command") for verb in VERBS}


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvroof")
def main() -> None:
    """Memory, speed and what bounds them, before anyone rents a GPU.

    \b
    kvroof kv llama-3.1-8b deepseek-v3        what the KV cache takes
    kvroof fit llama-3.1-8b h100-sxm          what fits, and what would make it fit
    kvroof estimate llama-3.1-8b h100-sxm     TTFT, TPOT, throughput, and what bounds them
    """


def run() -> None:
    """Run the command line. Exit 0: answered; 1: the answer is no; 2: one line says what to mend."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # The systems of equations solved here are small: threads wait for each other longer than they work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        main(standalone_mode=False)
        sys.stdout.flush()
    except KvroofError as error:
        _leave(error.one_line())
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.MissingParameter as error:
        _leave(f"{error.format_message()} {_listed(error.param)}".strip())
    except click.ClickException as error:
        _leave(" ".join(error.format_message().split()))
    except KeyboardInterrupt:
        _leave("interrupted")
    except click.Abort:
        _leave("interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        _leave(f"a fault of kvroof's own, please report it: {type(error).__name__}: {error}")
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(f"the answer cannot be written: {error.strerror}")


def _listed(param: click.Parameter | None) -> str:
    """Return which command names what an argument may be, "" where none does."""
    kinds = {"model": "models", "hw": "hardware", "name": "models` or `hardware"}
    kind = kinds.get(((param and param.name) or "").removesuffix("s"))
    return f"See `kvroof list {kind}`." if kind else ""


def _leave(line: str) -> None:
    click.echo(f"kvroof: {line}"[:590], err=True)
    sys.exit(2)
