"""Pipeline stages: which layers, embedding and head each rank of a pipeline holds."""

from __future__ import annotations

from dataclasses import replace

from kvroof.spec.architecture import Architecture, LayerGroup
from kvroof.spec.weights import Weight


def stage_sizes(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage, as even as they divide.

    What is left over goes to the stages before the last, from the back, one each: the last one holds the
    head. Source: vLLM's `get_pp_indices`.
    """
    even, rest = divmod(layers, stages)
    sizes = [even] * stages
    for back in range(2, rest + 2):
        sizes[-back] += 1
    return tuple(sizes)


def stage_models(model: Architecture, stages: int) -> tuple[Architecture, ...]:
    """Return the part of `model` that each stage holds.

    The embedding and the towers are the first stage's, the last norm and the head the last one's; a tied
    head, which cannot be shared between devices, is a second copy there.
    """
    parts, start = [], 0
    for index, size in enumerate(stage_sizes(len(model.order), stages)):
        held = model.order[start : start + size]
        kinds = tuple(dict.fromkeys(held))
        groups = tuple(LayerGroup(layer=model.layers[k].layer, count=held.count(k)) for k in kinds)
        order = tuple(kinds.index(k) for k in held)
        first, last = index == 0, index == stages - 1
        parts.append(
            replace(
                model,
                layers=groups,
                order=order,
                embedding=model.embedding if first else (),
                towers=model.towers if first else (),
                final=model.final if last else (),
                tied=model.tied if stages == 1 else not last,
                takes_tokens=first,
                gives_logits=last,
                checkpoint_bytes=None,
            )
        )
        start += size
    return tuple(parts)


def mtp_model(model: Architecture) -> Architecture:
    """Return the model's multi-token prediction module: what it runs for each token it drafts.

    A projection of the last hidden state beside the embedding of the last token, one layer like the
    model's last, and the shared head. Source: DeepSeek-V3 technical report, section 2.2.
    """
    hidden = model.hidden_size
    joined = Weight(name="eh_proj", shape=(2 * hidden, hidden), role="attention")
    last = model.layers[model.order[-1]].layer
    layer = replace(last, norms=(*last.norms, joined))
    return replace(
        model,
        name=f"{model.name} MTP",
        layers=(LayerGroup(layer=layer, count=1),),
        order=(0,),
        towers=(),
        tied=True,
        checkpoint_bytes=None,
        mtp_layers=0,
    )
