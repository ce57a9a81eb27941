"""Readers of traces: what the files say, and every way a file can be wrong."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvroof.ground.errors import BadInput
from kvroof.serving.demand import traces
from kvroof.serving.demand.requests import check_requests
from kvroof.serving.demand.traces import read_trace
from kvroof.serving.demand.traffic import traffic_of

MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9,'
    " 10, 11, 12, 13]}\n"
    '{"timestamp": 3000, "input_length": 1100, "output_length": 490, "hash_ids": [0, 14, 15]}\n'
)
"""The first line of Mooncake's conversation trace, and one more of its shape."""
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
)
"""The first lines of Azure's 2023 code trace."""
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,0,1087,Conversation log\n"
    "118,GPT-4,417,276,693,Conversation log\n"
)
OWN = "arrival_s,input_tokens,output_tokens\n1.5,100,20\n2,300,1\n"


@pytest.fixture
def file(tmp_path):
    def write(content, name="trace.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def shape(requests):
    return [(r.arrival_s, r.input_tokens, r.output_tokens) for r in requests]


def test_mooncakes_times_are_milliseconds_and_its_hashes_name_512_tokens(file):
    found = read_trace(file(MOONCAKE))
    assert shape(found) == [(0.0, 6758, 500), (3.0, 1100, 490)]
    assert found[0].block_hashes == tuple(range(14))
    assert found[1].hash_block_size == 512
    check_requests(found)


def test_azures_dates_count_from_the_first(file):
    found = read_trace(file(AZURE))
    assert shape(found) == [(0.0, 4808, 10), (pytest.approx(0.052), 3180, 8)]
    assert found[0].block_hashes is None


def test_failed_requests_of_burstgpt_are_left_out(file):
    assert shape(read_trace(file(BURSTGPT))) == [(0.0, 472, 18), (113.0, 417, 276)]


def test_ones_own_csv_needs_three_columns_in_any_order(file):
    assert shape(read_trace(file(OWN))) == [(0.0, 100, 20), (0.5, 300, 1)]
    turned = "note,output_tokens,arrival_s,input_tokens\nx,20,1.5,100\ny,1,2,300\n"
    assert shape(read_trace(file(turned))) == shape(read_trace(file(OWN)))


def test_compressed_files_blank_lines_and_byte_order_marks_are_read(file):
    plain = read_trace(file(AZURE))
    assert read_trace(file(gzip.compress(AZURE.encode()), "trace.csv.gz")) == plain
    assert read_trace(file("\ufeff" + AZURE.replace("\n", "\r\n\r\n"))) == plain


def test_only_as_many_requests_as_asked_for_are_read(file):
    assert len(read_trace(file(MOONCAKE + "not json\n"), limit=2)) == 2
    with pytest.raises(BadInput):
        read_trace(file(MOONCAKE), limit=0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 10**4)),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=30)
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    rows = sorted(rows)
    path = tmp_path_factory.mktemp("trace") / "own.csv"
    lines = [f"{t},{i},{o}" for t, i, o in rows]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    assert shape(read_trace(path)) == [(float(t - rows[0][0]), i, o) for t, i, o in rows]


def azure_with(line):
    return AZURE + line + "\n"


def mooncake_with(**changes):
    row = {"timestamp": 4000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]} | changes
    return MOONCAKE + json.dumps(row) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no request"),
        (AZURE.splitlines()[0], "holds no request"),
        ("a,b,c\n1,2,3\n", "no known trace"),
        (azure_with("yesterday,1,2"), ":4: TIMESTAMP"),
        (azure_with("2023-11-16 18:17:05,-5,2"), ":4: ContextTokens"),
        (azure_with("2023-11-16 18:17:05,nan,2"), ":4: ContextTokens"),
        (azure_with("2023-11-16 18:17:05,1e400,2"), ":4: ContextTokens"),
        (azure_with("2023-11-16 18:17:05,5,1.5"), ":4: GeneratedTokens"),
        (azure_with("2023-11-16 18:17:05,5,99999999999"), ":4: GeneratedTokens"),
        (azure_with("2023-11-16 18:17:05,5"), "2 cells under 3 columns"),
        (azure_with("2023-11-16 18:17:03,5,5"), ":4: arrival: arrives 1.03196 s before"),
        (azure_with("2123-11-16 18:17:05,5,5"), "ten years"),
        (MOONCAKE + "{broken\n", ":3: is not JSON"),
        (MOONCAKE + "[" * 100_000 + "\n", ":3: is not"),
        (MOONCAKE + "[1]\n", "is not an object"),
        (mooncake_with(input_length=None), ":3: input_length: is missing"),
        (mooncake_with(input_length=True), ":3: input_length"),
        (mooncake_with(timestamp="x"), ":3: timestamp"),
        (mooncake_with(timestamp=-1), ":3: timestamp"),
        (mooncake_with(hash_ids=[0]).replace("600", "1100"), ":3: hash_ids"),
        (mooncake_with(hash_ids=["a", "b"]), ":3: hash_ids"),
        (mooncake_with(hash_ids=7), ":3: hash_ids"),
        (b"\xff\xfe\x00binary", "is not text"),
        (OWN + "3," + "9" * 5000 + ",1\n", ":4: input_tokens"),
        (OWN + '3,"1\n', ":4"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line_and_key(file, content, said):
    path = file(content)
    with pytest.raises(BadInput) as caught:
        read_trace(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_endless_lines_and_bombs_are_refused_without_being_held(file, monkeypatch):
    with pytest.raises(BadInput, match="longer than"):
        read_trace(file(gzip.compress(b"x" * 2 * traces.MAX_LINE), "bomb.gz"))
    monkeypatch.setattr(traces, "MAX_BYTES", 10_000)
    with pytest.raises(BadInput, match="larger than"):
        read_trace(file(gzip.compress(b"\n" * 20_000), "blank.gz"))
    monkeypatch.setattr(traces, "MAX_REQUESTS", 3)
    with pytest.raises(BadInput, match="more than 3 requests"):
        read_trace(file(OWN + "3,1,1\n" * 5))


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_damaged_archives_are_refused(file, damage):
    whole = gzip.compress((AZURE + "2023-11-16 18:17:05,1,1\n" * 500).encode())
    content = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:-6] + b"xxxxxx",
        "not gzip": b"TIMESTAMP",
    }[damage]
    with pytest.raises(BadInput):
        read_trace(file(content, "trace.csv.gz"))


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(BadInput, match="cannot be read"):
            read_trace(path)


@given(st.binary(max_size=400))
@settings(max_examples=60)
def test_no_bytes_break_the_reader(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("trace") / random.Random(content).choice(["a.csv", "a.jsonl.gz"])
    path.write_bytes(content)
    with pytest.raises(BadInput):
        read_trace(path)


def test_the_traffic_of_a_trace_has_its_means_and_its_prefix_hits(file):
    """Two of three blocks of the third prompt were in the first."""
    rows = [(0, 1024, 100, [0, 1]), (2, 512, 50, [7]), (6, 1536, 30, [0, 1, 9])]
    lines = [
        json.dumps({"timestamp": 1000 * t, "input_length": i, "output_length": o, "hash_ids": h})
        for t, i, o, h in rows
    ]
    asked, rate = traffic_of(read_trace(file("\n".join(lines))), prefix_cache=True)
    assert rate == pytest.approx(3 / 6)
    assert asked.isl.mean == pytest.approx(1024)
    assert asked.osl.mean == pytest.approx(60)
    assert asked.run_tokens == pytest.approx((1024 + 512 + 512) / 3)
    assert asked.arrival_cv2 == pytest.approx(1 / 9)
    cold, _ = traffic_of(read_trace(file("\n".join(lines))))
    assert cold.run_tokens == cold.isl.mean


def test_a_single_request_has_no_rate(file):
    with pytest.raises(BadInput):
        traffic_of(read_trace(file(MOONCAKE), limit=1))
