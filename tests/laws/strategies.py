"""Generated models, machines and demands: valid, small enough to be quick, odd enough to be telling."""

from hypothesis import settings
from hypothesis import strategies as st

from kvroof.catalog.huggingface import read_architecture
from kvroof.ground.errors import BadInput
from kvroof.roofline.efficiency import Efficiency
from kvroof.roofline.plan import Plan
from kvroof.spec.hardware import Hardware, Link
from kvroof.spec.parallel import Layout, check_layout
from kvroof.spec.reach import Chunked, Full, Sliding, Strided
from kvroof.spec.workload import Sequences, Step

some = settings(max_examples=60, deadline=None)
few = settings(max_examples=25, deadline=None)

sizes = st.integers(1, 300)
tokens = st.integers(1, 5000)
batches = st.integers(1, 200)


def reaches(largest=200):
    size = st.integers(1, largest)
    return st.one_of(
        st.just(Full()),
        st.builds(Sliding, size=size),
        st.builds(Chunked, size=size),
        st.builds(Strided, ratio=size),
    )


def read(config):
    """Return the architecture of a generated config."""
    return read_architecture(config, "generated", "generated").architecture


# An expert model has at least one layer of experts.


@st.composite
def _common(draw):
    kv_heads = draw(st.sampled_from((1, 2, 3, 4, 8)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 4, 5)))
    head_dim = draw(st.sampled_from((32, 64, 96, 128)))
    return {
        "hidden_size": heads * head_dim,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": 64 * draw(st.integers(1, 40)),
        "num_hidden_layers": draw(st.integers(1, 14)),
        "vocab_size": 64 * draw(st.integers(1, 600)),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(("bfloat16", "float16"))),
    }


@st.composite
def llama_configs(draw):
    return {**draw(_common()), "model_type": "llama", "attention_bias": draw(st.booleans())}


@st.composite
def gemma3_configs(draw):
    return {
        **draw(_common()),
        "model_type": "gemma3_text",
        "sliding_window": draw(st.integers(1, 2048)),
        "sliding_window_pattern": draw(st.integers(1, 7)),
    }


@st.composite
def qwen3_moe_configs(draw):
    config = draw(_common())
    experts = draw(st.sampled_from((2, 8, 60, 128)))
    layers = config["num_hidden_layers"]
    step = draw(st.integers(1, min(layers, 3)))
    dense = [i for i in range(layers) if i != step - 1]
    return {
        **config,
        "model_type": "qwen3_moe",
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, min(experts, 8))),
        "moe_intermediate_size": 64 * draw(st.integers(1, 12)),
        "decoder_sparse_step": step,
        "mlp_only_layers": draw(st.lists(st.sampled_from(dense), max_size=3)) if dense else [],
    }


@st.composite
def deepseek_configs(draw):
    config = draw(_common())
    experts = draw(st.sampled_from((4, 64, 256)))
    for key in ("num_key_value_heads", "head_dim"):
        del config[key]
    return {
        **config,
        "model_type": "deepseek_v3",
        "q_lora_rank": draw(st.sampled_from((None, 96, 1536))),
        "kv_lora_rank": draw(st.sampled_from((64, 256, 512))),
        "qk_nope_head_dim": draw(st.sampled_from((32, 128))),
        "qk_rope_head_dim": draw(st.sampled_from((32, 64))),
        "v_head_dim": draw(st.sampled_from((64, 128))),
        "n_routed_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, min(experts, 8))),
        "n_shared_experts": draw(st.sampled_from((None, 1, 2))),
        "moe_intermediate_size": 64 * draw(st.integers(1, 12)),
        "first_k_dense_replace": draw(st.integers(0, min(config["num_hidden_layers"] - 1, 3))),
    }


configs = st.one_of(llama_configs(), gemma3_configs(), qwen3_moe_configs(), deepseek_configs())
models = configs.map(read)
llamas = llama_configs().map(read)
windowed = gemma3_configs().map(read)

rates = st.floats(1e9, 1e13)
peaks = st.floats(1e12, 5e15)


@st.composite
def machines(draw, memory=None):
    return Hardware(
        name="generated",
        vendor="nobody",
        memory_bytes=draw(memory or st.integers(2**20, 2**40)),
        hbm_bytes_per_s=draw(rates),
        peak_flops_per_s={"bf16": draw(peaks), "fp16": draw(peaks), "fp32": draw(peaks)},
        scale_up=Link(name="wire", bytes_per_s=draw(rates)),
    )


efficiencies = st.one_of(
    st.just(Efficiency()),
    st.builds(
        Efficiency,
        name=st.just("generated"),
        compute=st.floats(0.1, 1),
        hbm=st.floats(0.1, 1),
        net=st.floats(0.1, 1),
        launch_s=st.floats(0, 1e-4),
    ),
)


def ranks_of(model):
    """Return the tensor-parallel widths up to 16 that the model can be laid out on."""

    def possible(tp):
        try:
            check_layout(model, Layout(tp=tp))
        except BadInput:
            return False
        return True

    return [tp for tp in range(1, 17) if possible(tp)]


@st.composite
def plans(draw, of=models, ranks=True):
    model = draw(of)
    return Plan.of(
        model,
        draw(machines()),
        tp=draw(st.sampled_from(ranks_of(model))) if ranks else 1,
        kv_dtype=draw(st.sampled_from(("bf16", "fp8", "q8_0"))) if ranks is False else "bf16",
        io_aware=draw(st.booleans()),
        efficiency=draw(efficiencies),
    )


@st.composite
def sequences(draw):
    kv_len = draw(tokens)
    return Sequences(count=draw(st.integers(1, 40)), query_len=draw(st.integers(1, kv_len)), kv_len=kv_len)


steps = st.lists(sequences(), min_size=1, max_size=3).map(lambda groups: Step(groups=tuple(groups)))
executions = st.sampled_from(("absorbed", "expanded"))


def totals(ops):
    """Return what operations add up to, by name."""
    found = {}
    for op in ops:
        total = found.setdefault(op.name, [0] * 5)
        parts = (op.flops, op.weight_bytes, op.kv_bytes, op.activation_bytes, op.message_bytes)
        for i, part in enumerate(parts):
            total[i] += op.count * part
    return found
