"""Architectures of the census: each a small model with random weights, and what it is given in a step.

make() gives (model, batch): batch(step) gives the arguments of a call, whose answer has a loss. Those of transformers
are absent where that is not installed, or has no such class."""

import torch
from torch import nn
from torch.nn import functional as F

# Weights of WIDTH x WIDTH take a tile of a store each (4 096 elements), so that chunks hold few tensors.
WORDS, WIDTH, WIDE, HEAD = 128, 64, 128, 16
_DECODER = dict(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    intermediate_size=WIDE,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=HEAD,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    use_cache=False,
)
_ENCODER = dict(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=WIDE,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=32,
)
_VISION = dict(
    hidden_size=WIDTH,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=WIDE,
    image_size=16,
    patch_size=4,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def seeded(step):
    return torch.Generator().manual_seed(1000 + step)


def tokens(step, rows=2, columns=12, first=3):
    return torch.randint(first, WORDS, (rows, columns), generator=seeded(step))


def numbers(step, *shape):
    return torch.randn(*shape, generator=seeded(step))


def of_transformers(name, config, **settings):
    """A model of transformers by the names of its class and its configuration's."""
    import transformers

    kind = getattr(transformers, config, None)
    if kind is None or not hasattr(transformers, name):
        raise ImportError(f"transformers {transformers.__version__} has no {name}")
    # None: the configuration has no such setting.
    settings = {key: value for key, value in settings.items() if value is not None or not key.startswith("head_dim")}
    return getattr(transformers, name)(kind(**settings))


def decoder(name, config, **settings):
    def make():
        model = of_transformers(name, config, **{**_DECODER, **settings})
        return model, lambda step: dict(input_ids=tokens(step), labels=tokens(step))

    return make


def classifier(name, config, **settings):
    def make():
        model = of_transformers(name, config, **{**_ENCODER, "num_labels": 3, **settings})
        return model, lambda step: dict(input_ids=tokens(step), labels=tokens(step, 2, 1)[:, 0] % 3)

    return make


def image_classifier(name, config, size=16, **settings):
    def make():
        model = of_transformers(name, config, num_labels=3, **settings)
        return model, lambda step: dict(
            pixel_values=numbers(step, 2, 3, size, size), labels=tokens(step, 2, 1)[:, 0] % 3
        )

    return make


def translator(name, config, **settings):
    def make():
        model = of_transformers(
            name, config, vocab_size=WORDS, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **settings
        )
        return model, lambda step: dict(input_ids=tokens(step), labels=tokens(step + 50))

    return make


def clip():
    text = dict(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=WIDE)
    model = of_transformers(
        "CLIPModel",
        "CLIPConfig",
        text_config=dict(text, max_position_embeddings=16, eos_token_id=2, bos_token_id=1, projection_dim=16),
        vision_config=dict(_VISION, projection_dim=16),
        projection_dim=16,
    )
    return model, lambda step: dict(input_ids=tokens(step), pixel_values=numbers(step, 2, 3, 16, 16), return_loss=True)


def siglip():
    model = of_transformers(
        "SiglipModel",
        "SiglipConfig",
        text_config=dict(_ENCODER, max_position_embeddings=16, pad_token_id=1, bos_token_id=2, eos_token_id=2),
        vision_config=_VISION,
    )
    return model, lambda step: dict(input_ids=tokens(step), pixel_values=numbers(step, 2, 3, 16, 16), return_loss=True)


def llava():
    import transformers

    model = of_transformers(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        text_config=transformers.LlamaConfig(**_DECODER),
        vision_config=transformers.CLIPVisionConfig(**_VISION, projection_dim=16),
        image_token_index=5,
        image_token_id=5,
        vision_feature_layer=-1,
    )

    def batch(step):
        words = tokens(step, 1, 8, 6)
        words = torch.cat([torch.full((1, 16), 5), words], 1)
        return dict(input_ids=words, pixel_values=numbers(step, 1, 3, 16, 16), labels=words)

    return model, batch


def whisper():
    model = of_transformers(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        vocab_size=WORDS,
        num_mel_bins=8,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=WIDE,
        decoder_ffn_dim=WIDE,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return model, lambda step: dict(input_features=numbers(step, 2, 8, 32), labels=tokens(step, 2, 8))


def wav2vec2():
    model = of_transformers(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        **dict(_ENCODER, vocab_size=12),
        conv_dim=(32, 32),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        mask_time_prob=0.0,
        pad_token_id=0,
        ctc_loss_reduction="mean",
    )
    return model, lambda step: dict(input_values=numbers(step, 2, 400), labels=tokens(step, 2, 5) % 11 + 1)


# --- Of torch alone ---


class Answer:
    def __init__(self, loss):
        self.loss = loss


class Net(nn.Module):
    """A model whose call gives a loss: the square of what `run` makes."""

    def forward(self, x):
        return Answer(self.run(x).float().square().mean())


def own(kind, *shape):
    return lambda: (kind(), lambda step: dict(x=numbers(step, *shape)))


class UNet(Net):
    def __init__(self):
        super().__init__()
        self.down, self.lower = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, WIDTH, 3, 2, 1)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.last = nn.ConvTranspose2d(WIDTH, 32, 2, 2), nn.Conv2d(64, 3, 3, padding=1)
        self.norm = nn.GroupNorm(4, WIDTH)

    def run(self, x):
        high = F.silu(self.down(x))
        low = self.norm(self.lower(high))
        flat = low.flatten(2).transpose(1, 2)
        flat = flat + self.attention(flat, flat, flat)[0]
        return self.last(torch.cat([high, self.up(flat.transpose(1, 2).reshape(low.shape))], 1))


class Lstm(Net):
    def __init__(self):
        super().__init__()
        self.first, self.rnn, self.last = (
            nn.Linear(8, WIDTH),
            nn.LSTM(WIDTH, WIDTH, 2, batch_first=True),
            nn.Linear(WIDTH, 8),
        )

    def run(self, x):
        return self.last(self.rnn(self.first(x))[0])


class GruLoop(Net):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRUCell(8, WIDTH), nn.Linear(WIDTH, 8)

    def run(self, x):
        state = x.new_zeros(len(x), WIDTH)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.last(state)


class Shared(Net):
    def __init__(self):
        super().__init__()
        self.first, self.layer = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)

    def run(self, x):
        x = self.first(x)
        for _ in range(4):
            x = x + torch.tanh(self.layer(x))
        return x


class Branches(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.ways = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDTH)) for _ in range(3)]
        )

    def run(self, x):
        x = self.first(x)
        return x + self.ways[int(x.sum().item() * 1000) % 3](x)


class Norms(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(8, WIDTH))
        self.middle = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
        self.last = nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))

    def run(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Rare(Net):
    def __init__(self):
        super().__init__()
        self.bag, self.mix = nn.EmbeddingBag(WORDS, WIDTH), nn.Bilinear(WIDTH, WIDTH, 16)
        self.grouped, self.wide = nn.Conv1d(16, 16, 3, padding=1, groups=4), nn.ConvTranspose1d(16, 8, 2)

    def run(self, x):
        words = (x * 1000).long().abs() % WORDS
        bag = self.bag(words)
        return self.wide(self.grouped(self.mix(bag, bag)[..., None]))


class Wqkv(Net):
    """As InternLM2 has it: one projection for queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict(
                    {"norm": nn.RMSNorm(WIDTH), "wqkv": nn.Linear(WIDTH, 2 * WIDTH), "wo": nn.Linear(WIDTH, WIDTH)}
                )
                for _ in range(2)
            ]
        )

    def run(self, x):
        x = self.table((x * 1000).long().abs() % WORDS)
        for layer in self.layers:
            parts = layer["wqkv"](layer["norm"](x)).unflatten(-1, (2, 4, HEAD))
            q, k, v = parts[..., :2, :].flatten(2, 3), parts[..., 2, :], parts[..., 3, :]
            q = q.transpose(1, 2)
            k, v = (one.repeat_interleave(2, 2).transpose(1, 2) for one in (k, v))
            x = x + layer["wo"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x


class Listed(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.weights = nn.ParameterList([torch.eye(WIDTH) * 0.9 for _ in range(4)])

    def run(self, x):
        x = self.first(x)
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


class Keyed(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.weights = nn.ParameterDict({"a": torch.eye(WIDTH) * 0.9, "b": torch.eye(WIDTH) * 1.1})

    def run(self, x):
        return torch.tanh(self.first(x) @ self.weights["a"]) @ self.weights["b"]


class Borrowed(Net):
    def __init__(self):
        super().__init__()
        self.first, self.lent, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.scale = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def run(self, x):
        return self.last(F.linear(self.first(x), self.lent.weight) @ self.scale)


class TiedByFunction(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def run(self, x):
        x = self.table((x * 1000).long().abs() % WORDS)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return F.linear(x, self.table.weight)


class TorchTransformer(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.all = nn.Transformer(WIDTH, 4, 2, 2, WIDE, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def run(self, x):
        x = self.table((x * 1000).long().abs() % WORDS)
        return self.head(self.all(x, x))


class ConvBatchNorm(Net):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Linear(16, 4)

    def run(self, x):
        return self.last(F.relu(self.norm(self.conv(x))).mean((2, 3)))


_MOE = dict(num_local_experts=4, num_experts_per_tok=2)
# fmt: off
_STATE_SPACE = dict(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)

ARCHITECTURES = {
    "gpt2": decoder("GPT2LMHeadModel", "GPT2Config", n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": decoder("LlamaForCausalLM", "LlamaConfig"),
    "llama tied": decoder("LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=True),
    "mistral, window": decoder("MistralForCausalLM", "MistralConfig", sliding_window=4),
    "qwen3": decoder("Qwen3ForCausalLM", "Qwen3Config"),
    "gemma2": decoder("Gemma2ForCausalLM", "Gemma2Config"),
    "gemma3": decoder("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "phi3": decoder("Phi3ForCausalLM", "Phi3Config"),
    "opt": decoder("OPTForCausalLM", "OPTConfig", ffn_dim=WIDE, word_embed_proj_dim=WIDTH, max_position_embeddings=32, dropout=0.0),
    "bloom": decoder("BloomForCausalLM", "BloomConfig", n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0),
    "gpt-bigcode": decoder("GPTBigCodeForCausalLM", "GPTBigCodeConfig", n_embd=WIDTH, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "falcon": decoder("FalconForCausalLM", "FalconConfig", head_dim=None, hidden_dropout=0.0, attention_dropout=0.0),
    "gpt-neox": decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", hidden_dropout=0.0, attention_dropout=0.0),
    "mixtral": decoder("MixtralForCausalLM", "MixtralConfig", **_MOE),
    "qwen3-moe": decoder("Qwen3MoeForCausalLM", "Qwen3MoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=WIDTH),
    "deepseek-v3": decoder(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
        topk_group=1, moe_intermediate_size=WIDTH, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=64, kv_lora_rank=64,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, head_dim=8,
    ),
    "gpt-oss": decoder("GptOssForCausalLM", "GptOssConfig", **_MOE),
    "llama4": decoder("Llama4ForCausalLM", "Llama4TextConfig", intermediate_size_mlp=WIDE, num_local_experts=4, attention_chunk_size=8),
    "mamba": decoder("MambaForCausalLM", "MambaConfig", state_size=8),
    "mamba2": decoder("Mamba2ForCausalLM", "Mamba2Config", num_heads=8, head_dim=16, state_size=8, n_groups=2, chunk_size=8),
    "jamba": decoder("JambaForCausalLM", "JambaConfig", num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, num_experts=4, mamba_d_state=8, use_mamba_kernels=False),
    "rwkv": decoder("RwkvForCausalLM", "RwkvConfig", attention_hidden_size=WIDTH, context_length=32, rescale_every=0),
    "bert": classifier("BertForSequenceClassification", "BertConfig"),
    "albert": classifier("AlbertForSequenceClassification", "AlbertConfig", embedding_size=16, num_hidden_layers=4, classifier_dropout_prob=0.0),
    "deberta-v2": classifier("DebertaV2ForSequenceClassification", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"], pooler_hidden_size=WIDTH, pooler_dropout=0.0),
    "t5": translator("T5ForConditionalGeneration", "T5Config", d_model=WIDTH, d_kv=HEAD, d_ff=WIDE, num_layers=2, num_heads=4, dropout_rate=0.0),
    "bart": translator(
        "BartForConditionalGeneration", "BartConfig", d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=WIDE, decoder_ffn_dim=WIDE, max_position_embeddings=32, dropout=0.0, bos_token_id=2,
        forced_eos_token_id=None,
    ),
    "vit": image_classifier("ViTForImageClassification", "ViTConfig", **_VISION),
    "swin": image_classifier("SwinForImageClassification", "SwinConfig", image_size=16, patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, drop_path_rate=0.0),
    "convnext": image_classifier("ConvNextForImageClassification", "ConvNextConfig", size=32, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1]),
    "resnet": image_classifier("ResNetForImageClassification", "ResNetConfig", size=32, embedding_size=16, hidden_sizes=[16, 64], depths=[1, 1], layer_type="basic"),
    "clip": clip,
    "siglip": siglip,
    "llava": llava,
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "unet with attention": own(UNet, 2, 3, 8, 8),
    "lstm": own(Lstm, 2, 6, 8),
    "gru cell in a loop": own(GruLoop, 2, 6, 8),
    "a module used four times": own(Shared, 2, 8),
    "branches": own(Branches, 2, 8),
    "parametrizations": own(Norms, 2, 8),
    "bags, bilinear, grouped": own(Rare, 2, 8),
    "one projection for all": own(Wqkv, 2, 8),
    "parameter list": own(Listed, 2, 8),
    "parameter dict": own(Keyed, 2, 8),
    "borrowed weight": own(Borrowed, 2, 8),
    "tied by a function": own(TiedByFunction, 2, 8),
    "torch transformer": own(TorchTransformer, 2, 8),
    "conv before batch norm": own(ConvBatchNorm, 2, 3, 8, 8),
}
# fmt: on

# What differs in the training of one of them, as in settings.py. The gradient of a bias before a batch norm is 0, and what
# is computed of it is rounding alone. Adam would make steps of the learning rate of it, in a direction of chance, and
# evaluations see the bias. SGD makes as little of it as it is.
TRAINED_BY = {
    "conv before batch norm": {
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
    },
}
