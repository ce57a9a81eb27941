"""The ledger is monotone, its inverses are exact, and an allocator reserves at least what is used."""

from hypothesis import assume, given
from hypothesis import strategies as st

from kvroof.memory.allocators import parse_allocator
from kvroof.memory.kv import MAX_SEQS, MAX_TOKENS, caches, kv
from kvroof.memory.ledger import fit
from kvroof.spec.parallel import Layout
from kvroof.spec.params import weight_bytes
from kvroof.spec.precision import parse_kv_format

from .strategies import batches, few, gemma3_configs, models, read, some, tokens, windowed

allocators = st.builds(
    parse_allocator, st.sampled_from(("payload", "paged", "padded")), st.sampled_from((1, 7, 16, 64, 256))
)


@st.composite
def questions(draw, of=models):
    """Return a model, a capacity somewhere about its weights and a cache, and how it is asked."""
    model = draw(of)
    n, seqs = draw(tokens), draw(batches)
    needed = weight_bytes(model) + kv(model, tokens=n, seqs=seqs).allocated_bytes
    capacity = max(1, int(needed * draw(st.floats(0.3, 4))))
    asked = {
        "tokens": n,
        "seqs": seqs,
        "utilization": draw(st.sampled_from((0.9, 0.5, 1.0, 0.87))),
        "allocator": draw(allocators),
        "kv_format": parse_kv_format(draw(st.sampled_from(("bf16", "fp8"))), model),
    }
    return model, capacity, asked


@some
@given(questions(), st.integers(0, 2**36))
def test_more_memory_never_fits_less(question, more):
    model, capacity, asked = question
    small, large = fit(model, capacity, **asked), fit(model, capacity + more, **asked)
    assert small.fits <= large.fits
    assert small.max_seqs <= large.max_seqs
    assert small.max_tokens <= large.max_tokens
    assert small.kv_capacity_tokens <= large.kv_capacity_tokens
    assert large.headroom_bytes - small.headroom_bytes == large.budget_bytes - small.budget_bytes


@some
@given(questions())
def test_the_ledger_adds_up(question):
    model, capacity, asked = question
    ledger = fit(model, capacity, reserve_bytes=12345, **asked)
    assert ledger.total_bytes == ledger.weights_bytes + ledger.kv_bytes + ledger.reserve_bytes
    assert ledger.headroom_bytes == ledger.budget_bytes - ledger.total_bytes
    assert ledger.fits == (ledger.headroom_bytes >= 0)
    assert ledger.budget_bytes <= capacity
    assert bool(ledger.ways_out) <= (not ledger.fits)


@some
@given(questions())
def test_max_seqs_fits_and_one_more_does_not(question):
    model, capacity, asked = question
    most = fit(model, capacity, **asked).max_seqs
    asked.pop("seqs")
    assert most == 0 or fit(model, capacity, seqs=most, **asked).fits
    assert most == MAX_SEQS or not fit(model, capacity, seqs=most + 1, **asked).fits


@some
@given(questions(of=st.one_of(models, windowed)))
def test_max_tokens_fits_and_one_more_does_not(question):
    model, capacity, asked = question
    most = fit(model, capacity, **asked).max_tokens
    asked.pop("tokens")
    assert most == 0 or fit(model, capacity, tokens=most, **asked).fits
    assert most == MAX_TOKENS or not fit(model, capacity, tokens=most + 1, **asked).fits


@few
@given(gemma3_configs(), st.data())
def test_a_model_of_windows_only_holds_any_length_once_it_holds_its_windows(config, data):
    model = read({**config, "layer_types": ["sliding_attention"] * config["num_hidden_layers"]})
    widest = max(cache.reach.window for cache, _ in caches(model))
    needed = weight_bytes(model) + kv(model, tokens=widest).allocated_bytes
    spare = data.draw(st.integers(0, 2**30))
    assert fit(model, needed + spare, utilization=1, tokens=widest).max_tokens == MAX_TOKENS
    assert fit(model, needed - 1, utilization=1, tokens=widest).max_tokens < widest


@some
@given(questions())
def test_the_capacity_in_tokens_lies_between_the_whole_sequences_and_one_more(question):
    model, capacity, asked = question
    ledger = fit(model, capacity, **asked)
    assume(ledger.max_seqs < MAX_SEQS)
    assert 0 <= ledger.kv_capacity_tokens - ledger.max_seqs * ledger.tokens < ledger.tokens


@few
@given(questions())
def test_every_way_out_makes_it_fit(question):
    model, capacity, asked = question
    ledger = fit(model, capacity, **asked)
    for way in ledger.ways_out:
        changed = dict(asked)
        room = capacity
        if way.change in ("seqs", "tokens"):
            changed[way.change] = way.to
        elif way.change == "kv_dtype":
            changed["kv_format"] = parse_kv_format(way.to, model)
        elif way.change == "tp":
            changed["layout"] = Layout(tp=way.to)
        elif way.change == "capacity_bytes":
            room = way.to
            assert not fit(model, room - 1, **changed).fits
        else:
            continue
        assert fit(model, room, **changed).fits, way


@st.composite
def shared(draw):
    lengths = draw(st.lists(tokens, min_size=1, max_size=8))
    return lengths, draw(st.integers(0, min(lengths)))


@some
@given(models, shared(), st.sampled_from(("payload", "paged")), st.sampled_from((1, 7, 16, 64)))
def test_a_shared_prefix_never_costs_more(model, case, name, block):
    lengths, prefix = case
    policy = parse_allocator(name, block)
    apart = kv(model, lengths=lengths, allocator=policy)
    together = kv(model, lengths=lengths, shared_prefix=prefix, allocator=policy)
    assert together.payload_bytes <= apart.payload_bytes
    assert together.allocated_bytes <= apart.allocated_bytes
    assert together.payload_bytes <= together.allocated_bytes


@some
@given(models, tokens, st.integers(1, 20), st.sampled_from((1, 7, 16, 64)), st.data())
def test_a_shared_prefix_is_stored_once_on_layers_that_keep_everything(model, n, seqs, block, data):
    assume(all(cache.reach.window is None for cache, _ in caches(model)))
    prefix = data.draw(st.integers(0, n))
    policy = parse_allocator("payload", block)
    token = kv(model, tokens=1).payload_bytes
    report = kv(model, tokens=n, seqs=seqs, shared_prefix=prefix, allocator=policy)
    assert report.payload_bytes == token * (prefix + seqs * (n - prefix))


@some
@given(models, st.lists(tokens, min_size=1, max_size=8), st.sampled_from((1, 7, 16, 64, 256)))
def test_pages_waste_less_than_a_block_per_sequence_and_layer(model, lengths, block):
    report = kv(model, lengths=lengths, allocator=parse_allocator("paged", block))
    waste = report.allocated_bytes - report.payload_bytes
    per_token = sum(kind.bytes_per_token for kind in report.kinds)
    assert 0 <= waste <= (block - 1) * len(lengths) * per_token
    assert report.empty_slots <= (block - 1) * len(lengths)


@some
@given(models, st.lists(tokens, min_size=1, max_size=8), st.integers(0, 5000))
def test_allocators_reserve_in_order_payload_paged_reserved(model, lengths, more):
    longest = max(lengths) + more
    sizes = {
        name: kv(model, lengths=lengths, allocator=parse_allocator(name, 16, longest)).allocated_bytes
        for name in ("payload", "paged", "padded", "reserved")
    }
    assert sizes["payload"] <= min(sizes.values())
    assert sizes["padded"] <= sizes["reserved"]
    one = kv(model, lengths=lengths, allocator=parse_allocator("paged", 1)).allocated_bytes
    assert one == sizes["payload"]


@few
@given(models, tokens, batches)
def test_half_the_bytes_per_element_are_half_the_cache(model, n, seqs):
    sizes = [
        kv(model, tokens=n, seqs=seqs, kv_format=parse_kv_format(name, model)).payload_bytes
        for name in ("fp32", "bf16", "fp8")
    ]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]
