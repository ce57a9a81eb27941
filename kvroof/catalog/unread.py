"""Keys of a quantization config: those that move no bytes, and what is done with one that is not known."""

from __future__ import annotations

from kvroof.catalog.config import Config
from kvroof.ground.errors import Unsupported

_HARMLESS = frozenset(
    """
    _load_in_4bit _load_in_8bit act_bits act_data_type act_dynamic act_group_aware act_group_size act_sym
    activation_scale_ub activation_scheme actorder amp autoround_version backend batch_size
    bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type cache_block_outputs
    damp_auto_increment damp_percent dataset desc_act device disable_exllama do_fuse dynamic
    enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config failsafe fallback fmt
    format fuse_max_seq_len global_compression_ratio gptaq gptaq_alpha gradient_accumulate_steps hessian
    hyb_act input_activations is_checkpoint_fp8_serialized iters llm_int8_enable_fp32_cpu_offload
    llm_int8_threshold low_gpu_mem_usage lr max_input_length meta minmax_lr mock_quantization
    model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block modules_to_fuse
    mse nsamples observer observer_kwargs offload_to_disk offload_to_disk_path output_activations
    pack_dtype pad_token_id parallel_packing producer quant_method quantization_status quantizer rotation
    scale_dtype scale_fmt seqlen static_groups sym tokenizer true_sequential use_cuda_fp16 use_exllama v2
    v2_alpha version zp_dtype
    """.split()
)
"""Keys of known quantizers that say how values were found or are multiplied, not how they are stored."""


def refuse_unread(config: Config) -> None:
    """Refuse a key of a quantization config that was not asked for and is not known to move no bytes.

    Raises:
        Unsupported: There is such a key; null, false and empty are off.
    """
    for key, value in config.data.items():
        off = value is None or value is False or value in ("", [], {})
        if off or key in config.read or key in config.known or key in _HARMLESS:
            continue
        raise Unsupported(
            "may say how something is stored, and is not understood",
            where=config.where,
            key=config.path + key,
            way_out=f"pass --ignore-key {key} if it moves no bytes, or give --weights-dtype with"
            " --ignore-key quantization_config",
        )
