"""Small models of transformers, and words to train them with. Models are made from configurations: nothing is
fetched."""

import unittest

from support_torch import torch

try:
    import transformers
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ImportError:
    raise unittest.SkipTest("transformers is not installed") from None

SMALL = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    vocab_size=64,
    max_position_embeddings=32,
)
ROUND = dict(num_key_value_heads=2, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def gpt2():
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "gpt2",
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=64,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def llama(tied=False):
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **SMALL, **dict(ROUND, tie_word_embeddings=tied))
    )


def mixtral():
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            "mixtral", **SMALL, **ROUND, num_local_experts=4, num_experts_per_tok=2, output_router_logits=False
        )
    )


def bert():
    return AutoModel.from_config(
        AutoConfig.for_model("bert", **SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )


def t5():
    return transformers.AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(
            "t5",
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=64,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def vit():
    return AutoModel.from_config(
        AutoConfig.for_model(
            "vit",
            **{name: value for name, value in SMALL.items() if "position" not in name and name != "vocab_size"},
            image_size=8,
            patch_size=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 64, (2, 12), generator=generator)
    if model.config.model_type == "vit":
        return model(torch.randn(2, 3, 8, 8, generator=generator)).last_hidden_state.square().mean()
    if model.config.model_type == "bert":
        return model(tokens).pooler_output.square().mean()
    return model(input_ids=tokens, labels=tokens).loss


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, at):
        tokens = torch.randint(3, 64, (12,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": tokens, "labels": tokens.clone()}
