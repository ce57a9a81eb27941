"""The command as a process: what a shell sees, and what starting it costs."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

RUN = "from kvroof.cli.main import run; run()"


def command(*args, **more):
    return subprocess.run(
        [sys.executable, "-c", RUN, *args], capture_output=True, text=True, check=False, timeout=30, **more
    )


def test_counting_bytes_imports_no_array_or_plotting_library():
    program = textwrap.dedent(
        """
        import json, sys
        sys.argv = ["kvroof", "kv", "llama-3.1-8b"]
        from kvroof.cli.main import run
        run()
        print(json.dumps(sorted(set(sys.modules) & {"jax", "jaxlib", "optax", "flax", "plotly", "numpy"})))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "1.00 GiB" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_json_goes_to_stdout_alone_and_parses():
    done = command("kv", "llama-3.1-8b", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["bytes_per_token"] == 131_072


def test_no_is_exit_1_with_the_ledger_on_stdout():
    done = command("fit", "llama-3.1-8b", "--capacity", "16GiB")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("NO")


def test_bad_input_is_exit_2_with_one_line_on_stderr():
    done = command("kv", "no-such-model")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.name != "posix", reason="file names of arbitrary bytes are POSIX")
def test_a_name_that_is_not_utf_8_is_bad_input():
    done = subprocess.run(
        [sys.executable, "-c", RUN, "kv", b"\xff\xfe.json"], capture_output=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr.splitlines()) == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="/dev/full is POSIX")
def test_a_reader_that_leaves_early_is_no_fault():
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" list models | head -1', sys.executable, RUN],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout


def test_a_table_prints_where_the_terminal_knows_only_ascii():
    done = command("fit", "llama-3.1-8b", "h100-sxm", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("YES")


@pytest.mark.parametrize(
    ("words", "place", "found"),
    [("kvroof est", "1", "estimate"), ("kvroof estimate --kv", "2", "--kv-dtype")],
)
def test_verbs_and_options_are_completed(words, place, found):
    program = f"import sys; sys.argv = ['kvroof']; {RUN}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": place, "_KVROOF_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | asked
    )
    assert done.stdout.split() == [f"plain,{found}"]
