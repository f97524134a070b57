"""Models of Hugging Face that are models here, by the names in their config.json.

Each architecture translates its config.json into options of a config here, and back,
and links the parameters. A config that cannot be expressed is refused by name.
"""

import dataclasses
from collections.abc import Mapping

from transformer_jax.base.errors import UserError
from transformer_jax.convert.huggingface.architecture import (
    GENERATION,
    PROCESSOR,
    Architecture,
    Given,
)
from transformer_jax.convert.huggingface.architectures import (
    bart,
    bert,
    decoders,
    t5,
    vit,
    whisper,
)


def name_of(given: Given, sentences: bool) -> str:
    """Return the name of the architecture of a config.json, or refuse it.

    `sentences` says that the folder is one of sentence-transformers.
    """
    names = given.get("architectures") or []
    if sentences:  # a folder of sentence-transformers
        names = [f"{given.get('model_type')}-sentences"]
    for name in names:
        if name in ARCHITECTURES:
            return name
    raise UserError(
        f"the model is {' or '.join(map(repr, names)) or 'of no named architecture'}: "
        f"choose one of {', '.join(ARCHITECTURES)}"
    )


# Special tokens: by a field of config.json (…_id), or by the tokenizer's name of it.
OF_ENCODERS = ("pad_token", "unk_token", "cls_token", "sep_token")
OF_PAIRS = ("pad_token_id", "unk_token", "decoder_start_token_id", "eos_token_id")
OF_DECODERS = ("pad_token", "unk_token", "bos_token_id", "eos_token_id")

_BERT = Architecture(
    "masked",
    bert.masked_bert_options,
    bert.masked_links(
        "bert.",
        "cls.predictions",
        "transform.LayerNorm",
        "transform.dense",
        "cls.predictions.bias",
    ),
    bert.describe_bert,
    OF_ENCODERS,
    ignored=("bert.pooler", "cls.seq_relationship", "cls.predictions.decoder"),
)
_ROBERTA = dataclasses.replace(
    _BERT,
    link=bert.masked_links(
        "roberta.", "lm_head", "layer_norm", "dense", "lm_head.bias"
    ),
    describe=bert.describe_roberta,
    ignored=("roberta.pooler", "lm_head.decoder"),
)
_SENTENCES = Architecture(
    "similarity",
    bert.bert_options,
    bert.bert_links(""),
    bert.describe_bert,
    OF_ENCODERS,
    ignored=("pooler",),
)
_BART = Architecture(
    "translation",
    bart.bart_options,
    bart.bart_links,
    bart.describe_bart,
    OF_PAIRS,
    ignored=("model.encoder.embed", "model.decoder.embed", "lm_head"),
)
_T5 = Architecture(
    "translation",
    t5.t5_options,
    t5.t5_links,
    t5.describe_t5,
    OF_PAIRS,
    ignored=("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"),
)
_LLAMA = Architecture(
    "language",
    decoders.llama_options,
    decoders.llama_links,
    decoders.describe_llama,
    OF_DECODERS,
    ignored=("lm_head", "model.rotary_emb"),
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "BertForMaskedLM": _BERT,
    "BertForPreTraining": _BERT,
    "RobertaForMaskedLM": _ROBERTA,
    "BertForSequenceClassification": Architecture(
        "classification",
        bert.classifier_options,
        bert.classifier_links("bert.", "bert.pooler.dense", "classifier"),
        bert.describe_bert,
        OF_ENCODERS,
    ),
    "RobertaForSequenceClassification": Architecture(
        "classification",
        bert.classifier_options,
        bert.classifier_links("roberta.", "classifier.dense", "classifier.out_proj"),
        bert.describe_roberta,
        OF_ENCODERS,
        ignored=("roberta.pooler",),
    ),
    "bert-sentences": _SENTENCES,
    "roberta-sentences": dataclasses.replace(
        _SENTENCES, describe=bert.describe_roberta
    ),
    "MarianMTModel": _BART,
    "BartForConditionalGeneration": dataclasses.replace(_BART, prefix="bos_token_id"),
    "MBartForConditionalGeneration": _BART,
    "T5ForConditionalGeneration": _T5,
    "GPT2LMHeadModel": Architecture(
        "language",
        decoders.gpt2_options,
        decoders.gpt2_links,
        decoders.describe_gpt2,
        OF_DECODERS,
        ignored=("lm_head",),
        base="transformer.",
    ),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _LLAMA,
    "WhisperForConditionalGeneration": Architecture(
        "speech",
        whisper.whisper_options,
        whisper.whisper_links,
        whisper.describe_whisper,
        OF_PAIRS,
        ignored=("proj_out",),
        base="model.",
        model="speech",
        beside=(PROCESSOR, GENERATION),
    ),
    "ViTForImageClassification": Architecture(
        "images",
        vit.vit_options,
        vit.vit_links,
        vit.describe_vit,
        ignored=("vit.pooler",),
    ),
}
CLASSES = {  # the class of a run that was trained here, by model_type
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
