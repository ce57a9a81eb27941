"""Sizes of GGUF files as their publishers list them, in GB of 10**9 bytes with two decimals.

Sources: the model cards of bartowski's Meta-Llama-3.1-8B-Instruct-GGUF, aya-23-8B-GGUF,
gemma-2-9b-it-GGUF and gemma-2-27b-it-GGUF; TheBloke's Llama-2-70B-Chat-GGUF and CodeLlama-13B-GGUF. A file
holds the tokenizer as well.
"""

from __future__ import annotations

import pytest

from kvroof.catalog.models import load_model
from kvroof.spec.params import parse_formats, weight_bytes

FILES = [
    ("llama-3.1-8b", "q8_0", 8.54),
    ("aya-23-8b", "q8_0", 8.54),
    ("gemma-2-9b", "q8_0", 9.83),
    ("gemma-2-27b", "q8_0", 28.93),
    ("llama-2-70b", "q4_0", 38.87),
    ("codellama-13b", "q8_0", 13.83),
]


@pytest.mark.parametrize(("name", "dtype", "gigabytes"), FILES)
def test_a_gguf_dtype_takes_the_bytes_of_the_published_file(name: str, dtype: str, gigabytes: float) -> None:
    model = load_model(name)
    assert weight_bytes(model, parse_formats(dtype, model)) / 1e9 == pytest.approx(gigabytes, rel=5e-3)
