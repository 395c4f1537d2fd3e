"""A small model, its data, and a judge."""

from pathlib import Path

import pytest
import torch
from small_text import make_sentences, prepare_in
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
from open_nvib.text.training.train import train


def train_small(folder: Path, bottleneck: str, data: Path) -> Path:
    config = TrainConfig(
        data=str(data),
        model=ModelSettings(bottleneck=bottleneck, d_model=32, ffn_size=32, max_positions=64, dropout=0.0),  # pyright: ignore[reportArgumentType]
        loss=LossSettings(lambda_g=0.001, delta=0.3) if bottleneck == "nvae" else LossSettings(),
        optimiser=OptimiserSettings(steps=60, batch_size=32, learning_rate=5e-3, clip=1.0),
        watch=WatchSettings(evaluate_every=60, bleu_sentences=4),
    )
    train(config, folder / bottleneck)
    return folder / bottleneck


@pytest.fixture(scope="session")
def evaluation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_in(tmp_path_factory.mktemp("evaluation"), make_sentences(300))


@pytest.fixture(scope="session")
def nvae(tmp_path_factory: pytest.TempPathFactory, evaluation_data: Path) -> Path:
    """The run directory of a small NVAE."""
    return train_small(tmp_path_factory.mktemp("runs"), "nvae", evaluation_data)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, evaluation_data: Path) -> Path:
    """The run directory of a small plain Transformer."""
    return train_small(tmp_path_factory.mktemp("runs"), "t", evaluation_data)


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model that reads bytes, drawn at random."""
    folder = tmp_path_factory.mktemp("judge")
    alphabet = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    backend = Tokenizer(BPE(alphabet | {"<s>": len(alphabet)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(alphabet) + 1,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
