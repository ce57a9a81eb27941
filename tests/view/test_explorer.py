"""The explorer's page answers what the Python functions answer, at random points, in a browser's engine."""

import json
import math
import random
import re
import shlex
from functools import cache
from typing import Any

import pytest

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.errors import Unsupported
from kvroof.memory.kv import kv
from kvroof.roofline.efficiency import IDENTITY
from kvroof.roofline.plan import Plan
from kvroof.search.expressions import OPERATIONS
from kvroof.search.model_tables import CACHED, WEIGHTS
from kvroof.search.tables import explorer_tables
from kvroof.serving.latency import Estimate, estimate
from kvroof.spec.parallel import Layout
from kvroof.spec.precision import parse_kv_format
from kvroof.view.explorer.page import SCRIPTS, explorer_page, script

POINTS = 1000
MODELS = (
    "llama-3.1-8b",
    "gemma-3-27b",
    "gpt-oss-20b",
    "mixtral-8x7b-v0.1",
    "deepseek-v3",
    "deepseek-v4-flash",
    "qwen3-next-80b-a3b",
    "nvidia-nemotron-3-nano-30b-a3b-bf16",
)
"""Full, windowed, latent, sparse and compressed attention, fixed state, dense layers and experts."""
MACHINES = ("h100-sxm", "b200-sxm", "a100-pcie-40gb", "rtx-4090", "mi300x", "tpu-v5e", "t4", "gb200-nvl72")
"""Calibrated, carried over, bounds; with NVLink, over PCIe and the network, and where no link is known."""
MOST_BYTES = 28_000
"""Of a model on average, so that the whole catalog makes a page of 4 MB."""
SAME = 1e-12
"""Relative difference of a sum of floats that is taken in another order."""
TIMES = ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s", "tokens_per_s_per_device")
OF_A_PHASE = ("mfu", "mbu", "lower_bound_s")
OF_AN_OPERATION = ("count", "flops", "hbm_bytes", "net_bytes", "seconds")
OF_THE_LEDGER = (
    "fits", "capacity_bytes", "budget_bytes", "weights_bytes", "kv_bytes", "reserve_bytes", "total_bytes",
    "headroom_bytes", "max_seqs", "max_tokens",
)  # fmt: skip

ASK = """
const explorer = Kvroof.open(JSON.parse(tables));
function ask(choices) {
  return JSON.stringify(JSON.parse(choices).map((choice) => {
    const answer = { memory: explorer.memory(choice) };
    try {
      answer.speed = explorer.speed(choice);
      answer.prefill = explorer.byName(answer.speed.prefill.ops);
      answer.decode = explorer.byName(answer.speed.decode.ops);
      delete answer.speed.times;
    } catch (error) {
      if (!(error instanceof Kvroof.Unknown)) throw error;
      answer.unknown = error.message;
    }
    return answer;
  }));
}
function choose(work, ...parts) { return JSON.stringify(Choice[work](...parts.map(JSON.parse))); }
function mend(asked) { return JSON.stringify(Choice.mended(JSON.parse(asked), JSON.parse(tables))); }
"""

model_of, machine_of, calibration_of = map(cache, (load_model, load_hardware, load_calibration))


@pytest.fixture(scope="module")
def tables() -> Any:
    return explorer_tables(
        [(name, model_of(name)) for name in MODELS], [(name, machine_of(name)) for name in MACHINES]
    )


@pytest.fixture(scope="module")
def page(tables) -> Any:
    """The page's own scripts in V8, without a page."""
    from py_mini_racer import MiniRacer

    engine = MiniRacer()
    engine.eval("class URLSearchParams {}" + f"const tables = {json.dumps(json.dumps(tables))};")
    engine.eval(script("model.js") + script("choice.js") + ASK)
    return engine


@pytest.fixture(scope="module")
def choices(tables) -> list[dict[str, Any]]:
    drawn = random.Random(20)
    ranks = {model["name"]: list(model["ranks"]) for model in tables["models"]}
    profiles = {m["name"]: ["auto", *(t["calibration"] for t in m["times"])] for m in tables["machines"]}

    def log_uniform(low: int, high: int) -> int:
        return round(math.exp(drawn.uniform(math.log(low), math.log(high))))

    return [
        {
            "model": (model := drawn.choice(MODELS)),
            "machine": (machine := drawn.choice(MACHINES)),
            "tp": int(drawn.choice(ranks[model])),
            "weights": drawn.choice(WEIGHTS),
            "cached": drawn.choice(CACHED),
            "calibration": drawn.choice(profiles[machine]),
            "isl": log_uniform(1, 200_000),
            "osl": log_uniform(1, 5_000),
            "batch": log_uniform(1, 2_000),
            "percent": drawn.randint(50, 100),
            "reserve_bytes": drawn.choice((0, 3 * 2**30)),
        }
        for _ in range(POINTS)
    ]


def python_answer(choice: dict[str, Any]) -> Estimate | str:
    """Return what Python estimates, or why it refuses."""
    plan = Plan.of(
        model_of(choice["model"]),
        machine_of(choice["machine"]),
        tp=choice["tp"],
        kv_dtype=choice["cached"],
        weights_dtype=choice["weights"],
        efficiency=calibration_of(choice["calibration"], choice["machine"]) or IDENTITY,
    )
    try:
        return estimate(
            plan,
            isl=choice["isl"],
            osl=choice["osl"],
            batch=choice["batch"],
            utilization=choice["percent"] / 100,
            reserve_bytes=choice["reserve_bytes"],
        )
    except Unsupported as refused:
        return str(refused)


def figures(answer: Estimate) -> dict[str, Any]:
    """Return what both sides answer, by name, from Python's record."""
    found: dict[str, Any] = {name: getattr(answer, name) for name in TIMES}
    found |= {f"ledger {name}": getattr(answer.memory, name) for name in OF_THE_LEDGER}
    for phase, time, operations in (
        ("prefill", "ttft_s", answer.prefill_ops),
        ("decode", "tpot_s", answer.decode_ops),
    ):
        found[f"{phase} bound"] = getattr(answer.bound, phase)
        found |= {f"{phase} {name}": getattr(getattr(answer, name), phase) for name in OF_A_PHASE}
        found[f"{phase} operations"] = [(op.name, op.bound) for op in operations]
        found |= {f"{phase} {op.name} {n}": getattr(op, n) for op in operations for n in OF_AN_OPERATION}
        likely = getattr(answer.interval, time) if answer.interval else (None, None)
        found |= {f"{phase} low": likely[0], f"{phase} high": likely[1]}
    return found


def page_figures(answer: Any) -> dict[str, Any]:
    """Return the same from what the page says."""
    speed = answer["speed"]
    found: dict[str, Any] = {name: speed[name] for name in TIMES}
    found |= {f"ledger {name}": answer["memory"][name] for name in OF_THE_LEDGER}
    for phase in ("prefill", "decode"):
        found[f"{phase} bound"] = speed[phase]["bound"]
        found |= {f"{phase} {name}": speed[phase][name] for name in OF_A_PHASE}
        found[f"{phase} operations"] = [(op["name"], op["bound"]) for op in answer[phase]]
        found |= {f"{phase} {op['name']} {n}": op[n] for op in answer[phase] for n in OF_AN_OPERATION}
        likely = speed[phase]["interval"] or (None, None)
        found |= {f"{phase} low": likely[0], f"{phase} high": likely[1]}
    return found


def differences(python: dict[str, Any], shown: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs: the ledger and words at all, other numbers by more than the order of a sum."""
    assert python.keys() == shown.keys()
    return {
        name: (value, shown[name])
        for name, value in python.items()
        if value != shown[name]
        and (
            not isinstance(value, int | float)
            or name.startswith("ledger")
            or not math.isclose(value, shown[name], rel_tol=SAME, abs_tol=0)
        )
    }


def test_the_page_answers_what_python_answers_at_random_points(page, choices):
    shown = json.loads(page.call("ask", json.dumps(choices)))
    refused, wrong = 0, []
    for choice, answer in zip(choices, shown, strict=True):
        python = python_answer(choice)
        if isinstance(python, str):
            refused += 1
            assert "unknown" in answer, (python, choice)
        elif found := differences(figures(python), page_figures(answer)):
            wrong.append((choice, found))
    assert wrong[:3] == []
    assert POINTS / 2 < POINTS - refused < POINTS


def test_the_page_counts_the_bytes_of_every_kind_of_layer(page, choices):
    few = choices[::5]
    for choice, answer in zip(few, json.loads(page.call("ask", json.dumps(few))), strict=True):
        model, shown = model_of(choice["model"]), answer["memory"]
        report = kv(
            model,
            tokens=choice["isl"] + choice["osl"] - 1,
            seqs=choice["batch"],
            kv_format=parse_kv_format(choice["cached"], model),
            layout=Layout(tp=choice["tp"]),
        )
        assert shown["bytes_per_token"] == report.bytes_per_token
        assert shown["fixed_bytes_per_seq"] == report.fixed_bytes_per_seq
        assert shown["payload_bytes"] == report.payload_bytes
        assert shown["kv_bytes"] == report.bytes_per_rank
        assert sum(kind["payload_bytes"] for kind in shown["kinds"]) * choice["batch"] == report.payload_bytes
        told = ("kind", "layers", "window", "bytes_per_token", "state_bytes")
        assert [[kind[name] for name in told] for kind in shown["kinds"]] == [
            [getattr(kind, name) for name in told] for kind in report.kinds
        ]


def test_the_commands_of_the_page_print_its_figures(page, kvroof):
    asked = {
        "model": "gpt-oss-20b",
        "machine": "h100-sxm",
        "tp": 2,
        "isl": 3000,
        "osl": 77,
        "batch": 5,
        "weights": "auto",
        "cached": "fp8",
        "percent": 85,
        "reserve": 1.5,
        "calibration": "h100-sxm-sglang",
    }
    choice = json.loads(page.call("choose", "asked", json.dumps(asked)))
    (shown,) = json.loads(page.call("ask", json.dumps([choice])))
    timed, counted = json.loads(page.call("choose", "commands", json.dumps(choice), "true"))
    answer = kvroof(*shlex.split(timed)[1:], "--json").json
    assert answer["tpot_s"] == pytest.approx(shown["speed"]["tpot_s"], rel=SAME)
    assert answer["memory"]["headroom_bytes"] == shown["memory"]["headroom_bytes"]
    assert (
        kvroof(*shlex.split(counted)[1:], "--json").json[0]["payload_bytes"]
        == shown["memory"]["payload_bytes"]
    )
    untimed, _ = json.loads(page.call("choose", "commands", json.dumps(choice), "false"))
    assert kvroof(*shlex.split(untimed)[1:], "--json").json["max_seqs"] == shown["memory"]["max_seqs"]


@pytest.mark.parametrize(
    ("asked", "mended"),
    [
        ({"model": "gpt-9"}, {"model": MODELS[0]}),
        ({"machine": "abacus"}, {"machine": MACHINES[0]}),
        ({"model": "llama-3.1-8b", "tp": "6"}, {"tp": 4}),
        ({"tp": "x"}, {"tp": 1}),
        ({"batch": "0"}, {"batch": 1}),
        ({"isl": "1e99"}, {"isl": 2**22}),
        ({"isl": "Infinity"}, {"isl": 2048}),
        ({"osl": "<b>"}, {"osl": 256}),
        ({"weights": "fp3"}, {"weights": "auto"}),
        ({"machine": "t4", "calibration": "h100-sxm-vllm"}, {"calibration": "auto"}),
        ({"percent": "250"}, {"percent": 100}),
    ],
)
def test_an_address_that_asks_for_what_is_not_there_is_mended(page, asked, mended):
    assert json.loads(page.call("mend", json.dumps(asked))).items() >= mended.items()


def test_the_page_is_one_file_that_asks_for_nothing(tables):
    html = explorer_page(tables)
    assert "default-src 'none'" in html
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", html)
    assert not re.search(r"@(?:version|style|script|tables)@", html)
    assert html.count("</script>") == 2
    assert sum(len(json.dumps(model)) for model in tables["models"]) / len(MODELS) < MOST_BYTES
    assert all(script(name) in html for name in SCRIPTS)
    inside = re.search(r'id="tables">(.*?)</script>', html, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1]) == json.loads(json.dumps(tables))


def test_a_name_that_is_a_script_ends_no_script_of_the_page(tables):
    wicked = "</script><script>alert(1)</script>"
    named = {
        **tables,
        "models": [{**model, "name": wicked} for model in tables["models"]],
        "machines": [{**machine, "name": wicked} for machine in tables["machines"]],
    }
    page = explorer_page(named)
    assert "<script>alert(1)" not in page
    assert page.count("<script") == explorer_page(tables).count("<script")
    assert page.count("</script") == explorer_page(tables).count("</script")


def test_the_page_knows_the_operations_that_tapes_are_made_of(page):
    assert json.loads(page.eval("JSON.stringify(JSON.parse(tables).operations)")) == list(OPERATIONS)
    assert f"const OPERATIONS = {json.dumps(OPERATIONS)}".replace("(", "[") in script("model.js")
