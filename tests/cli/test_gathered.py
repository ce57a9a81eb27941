"""Options that reach a command as one value."""

from typing import NamedTuple

import click
import pytest

from kvroof.cli.options import gathered, given, left_out, words_given


class Pair(NamedTuple):
    left: int
    right: int = 7


LEFT, RIGHT = click.option("--left", default=1, help="L."), click.option("--right", default=2, help="R.")


def run(*options, args=(), more=lambda: None):
    """Return what a command with these options is called with."""
    seen = {}

    def body(**values):
        seen.update(values)
        seen["more"] = more()

    for option in reversed(options):
        body = option(body)
    click.command("verb")(body).main(list(args), standalone_mode=False)
    return seen


def test_a_group_is_one_argument_made_by_the_names_of_its_record():
    seen = run(gathered("pair", Pair, LEFT, RIGHT), click.option("--other", default=3), args=["--left", "5"])
    assert seen == {"pair": Pair(5, 2), "other": 3, "more": None}


def test_a_field_without_an_option_has_the_record_s_default():
    assert run(gathered("pair", Pair, LEFT))["pair"] == Pair(1, 7)


def test_groups_nest():
    class Outer(NamedTuple):
        pair: Pair
        size: int

    inner = gathered("pair", Pair, LEFT, RIGHT)
    assert run(gathered("outer", Outer, inner, click.option("--size", default=9)))["outer"] == Outer(
        Pair(1, 2), 9
    )


def test_without_a_record_a_group_holds_what_was_given():
    group = gathered("flags", given, click.option("--a", type=int), click.option("--b-c", type=int))
    assert run(group, args=["--b-c", "0"])["flags"] == {"b_c": 0}
    assert run(group)["flags"] == {}


def test_the_options_of_a_group_are_listed_in_their_place():
    command = click.option("--first")(
        gathered("pair", Pair, LEFT, RIGHT)(click.option("--last")(lambda: None))
    )
    assert [param.name for param in click.command("verb")(command).params] == [
        "first",
        "left",
        "right",
        "last",
    ]


@pytest.mark.parametrize(("args", "words"), [([], []), (["--right", "2"], ["--right", "2"])])
def test_what_was_typed_is_told_from_defaults_inside_a_group_too(args, words):
    seen = run(
        gathered("pair", Pair, LEFT, RIGHT),
        args=args,
        more=lambda: (words_given(("left", "right")), left_out("right")),
    )
    assert seen["more"] == (words, not args)
