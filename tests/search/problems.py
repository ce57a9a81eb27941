"""Random questions: models x machines x limits x lengths, some easy, some that nothing can keep."""

import random

from kvroof.calibration.load import load_calibration
from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.roofline.efficiency import IDENTITY
from kvroof.search.choices import Axes, Stores, plans
from kvroof.search.question import Question
from kvroof.serving.demand.lengths import fixed, from_percentiles
from kvroof.serving.pools.goodput import limits

MODELS = (
    "llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b", "gemma-3-27b", "llama-3.1-70b", "mixtral-8x7b-v0.1",
    "gpt-oss-20b", "deepseek-v2-lite", "mistral-7b-v0.1",
)  # fmt: skip
MACHINES = (
    "h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm", "mi300x", "l40s", "rtx-4090", "tpu-v5p",
    "gb200-nvl72",
)  # fmt: skip
MOST_BATCH = 1024


def problem(seed):
    """Return the plans and the question of a random search, and what it is in words."""
    draw = random.Random(seed)
    model, machine = draw.choice(MODELS), draw.choice(MACHINES)
    hardware = load_hardware(machine)
    efficiency = draw.choice((None, load_calibration("auto", machine))) or IDENTITY
    maximize = draw.choice(("throughput", "throughput", "throughput", "batch", "context"))
    objective = draw.choice(("throughput", "latency", "energy")) if maximize == "throughput" else "throughput"
    isl, osl = round(2 ** draw.uniform(5, 14)), round(2 ** draw.uniform(3, 12))
    spread = maximize != "context" and draw.random() < 0.25
    ttft = None if draw.random() < 0.3 else 10 ** draw.uniform(-0.7, 1)
    tpot = None if draw.random() < 0.3 else 10 ** draw.uniform(-2.2, -1)
    question = Question(
        isl=from_percentiles(isl, 3 * isl) if spread else fixed(isl),
        osl=from_percentiles(osl, 2 * osl) if spread else fixed(max(osl, 2)),
        limits=limits(ttft, tpot),
        maximize=maximize,
        objective=objective,
        batch=draw.choice((1, 4, 16)) if maximize == "context" else None,
        most_batch=MOST_BATCH,
        chunk=draw.choice(("whole", 2048)) if maximize == "context" else "auto",
    )
    most = draw.choice((1, 2, 4, 8))
    axes = Axes(most_devices=most, pp=min(draw.choice((1, 1, 1, 2)), most))
    words = (
        f"{seed}: {model} {machine} {efficiency.name} {maximize} {objective} {isl} {osl} {ttft} {tpot} {axes}"
    )
    return plans(load_model(model), [hardware], axes, Stores(), lambda _: efficiency), question, words
