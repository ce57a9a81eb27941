"""Timing: other numbers for every call, repeats in turn, a limit that is kept, programs that compute."""

import numpy as np
import pytest

from kvroof.calibration.local import products
from kvroof.calibration.local.attention import Heads, attention, decodes, forget, prefills
from kvroof.calibration.local.bench import FEWEST, WARM_UPS, Bench, Clock, Effort, copies
from kvroof.calibration.work import Work
from kvroof.ground.errors import Unsupported

BRIEF = Effort(repeats=3, bench_s=0.01, limit_s=60)


def bench(name, call, inner=1):
    return Bench("gemm.fp32", name, "fp32", Work(1.0, 1.0, 1.0, 1.0, 0.0), inner, lambda: call)


def run(*benches, effort=BRIEF):
    clock = Clock(effort)
    return clock, list(clock.run(benches))


def test_no_call_is_given_what_an_earlier_one_had():
    given = []
    run(bench("seen", lambda poison: given.append(float(poison)) or poison), effort=Effort(repeats=9))
    assert len(given) == 9 + WARM_UPS
    assert len(set(given)) == len(given)


def test_an_answer_that_ignores_its_input_is_refused():
    with pytest.raises(Unsupported, match="nothing was computed"):
        run(bench("constant", lambda poison: np.ones(3)))


def test_an_answer_that_is_not_finite_is_refused():
    with pytest.raises(Unsupported, match="finite"):
        run(bench("lost", lambda poison: np.array([float("nan")]) * poison))


def test_repeats_of_programs_take_turns():
    calls = []

    def called(name):
        return bench(name, lambda poison: calls.append(name) or poison)

    run(called("a"), called("b"))
    assert calls == ["a"] * WARM_UPS + ["b"] * WARM_UPS + ["a", "b"] * BRIEF.repeats


def test_the_median_repeat_counts_for_one_kernel_of_the_chain(monkeypatch):
    taken = iter([9.0, 9.0, 8.0, 2.0, 4.0])
    monkeypatch.setattr(Clock, "_once", lambda self, call: (next(taken), np.random.rand(2)))
    _, (timing,) = run(bench("chain", None, inner=2), effort=Effort(repeats=3))
    assert timing.seconds == 2.0
    assert timing.shortest == 1.0
    assert timing.repeats == 3


def test_a_long_program_is_repeated_least(monkeypatch):
    monkeypatch.setattr(Clock, "_once", lambda self, call: (5.0, np.random.rand(2)))
    _, (timing,) = run(bench("long", None), effort=Effort(repeats=50, bench_s=1.0))
    assert timing.repeats == FEWEST


def test_what_the_limit_leaves_no_time_for_is_named():
    told = []
    clock = Clock(Effort(limit_s=0), lambda what, done, total: told.append((done, total)), 2)
    assert list(clock.run([bench("a", None), bench("b", None)])) == []
    assert [left.shape for left in clock.left_out] == ["a", "b"]
    assert told == [(1, 2), (2, 2)]


def test_operands_are_gone_through_until_the_cache_holds_none_of_them():
    assert copies(1e6, 32e6, 100) == 64
    assert copies(1e6, 32e6, 8) == 8
    assert copies(1e9, 32e6, 8) == 1


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Let programs be compiled once for the module, and their data go after it."""
    yield
    forget()


HEADS = Heads(2, 2, 8)
PROGRAMS = (
    products.product(4, 16, 8, "fp32", 1e3),
    products.product(4, 16, 8, "bf16", 1e3),
    products.copy(1024),
    products.read(1024),
    products.row(1024),
    products.elementwise(4, 64, "fp32"),
    products.empty_call(),
    *attention(decodes(2, 32, HEADS, ((2, 20), (1, 32))), "fp32", 0),
    *attention(prefills(2, 16, HEADS, (2,)), "fp32", 0),
)


def test_every_program_computes_what_it_is_given():
    clock = Clock(BRIEF, None, len(PROGRAMS))
    timings = list(clock.run(PROGRAMS))
    assert [t.bench for t in timings] == list(PROGRAMS)
    assert all(0 < t.shortest <= t.seconds for t in timings)


def test_attention_is_that_of_its_real_rows():
    """A row without a sequence puts out zeros; the others attend, and see what was written just before."""
    (one,) = attention(decodes(2, 32, HEADS, ((1, 20),)), "fp32", 0)
    _, out, pages = one.make()(np.float32(1.25))
    assert np.abs(np.asarray(out[0])).max() > 0
    assert np.abs(np.asarray(out[1])).max() == 0
    assert np.isfinite(np.asarray(pages.k)).all()


def test_work_is_what_an_operation_of_a_step_is_priced_with():
    from kvroof.catalog.models import load_model
    from kvroof.cost.forward import forward
    from kvroof.roofline.plan import Plan
    from kvroof.spec.workload import decode, prefill

    plan = Plan.of("llama-3.1-8b", "h200-sxm", kv_dtype="bf16")
    (attend,) = {
        op for op in forward(load_model("llama-3.1-8b"), decode(3, 100), plan.run("absorbed"))
        if op.kind == "attention"
    }  # fmt: skip
    (found,) = attention(decodes(4, 112, Heads(8, 4, 128), ((3, 100),)), "bf16", 0)
    assert found.family == attend.family
    assert found.work.flops == attend.flops
    assert found.work.hbm_bytes == attend.hbm_bytes
    (attend,) = {
        op for op in forward(load_model("llama-3.1-8b"), prefill(2, 64), plan.run("absorbed"))
        if op.kind == "attention"
    }  # fmt: skip
    (found,) = attention(prefills(2, 64, Heads(8, 4, 128), (2,)), "bf16", 0)
    assert (found.work.flops, found.work.hbm_bytes) == (attend.flops, attend.hbm_bytes)
