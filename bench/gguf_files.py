"""GGUF files in 32-bit floats, so that llama-server computes with the numbers that the MLX folder holds.

python -m bench.gguf_files float32 SOURCE TARGET    the same model
python -m bench.gguf_files tiny SOURCE TARGET       a random one of 2 layers, a small vocabulary
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

Tensor = tuple[str, np.ndarray[Any, np.dtype[np.float32]]]
LAYERS, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 2, 256, 512, 4, 2, 64
VOCAB = 2048
WORD = re.compile("Ġ?[A-Za-z]+")
TINY = {
    "llama.block_count": LAYERS,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": HIDDEN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.vocab_size": VOCAB,
    "llama.rope.dimension_count": HEAD_SIZE,
}


def float32_copy(source: GGUFReader, target: Path) -> None:
    tensors = ((t.name, dequantize(t.data, t.tensor_type).astype(np.float32)) for t in source.tensors)
    write(target, metadata(source), tensors)


def tiny(source: GGUFReader, target: Path) -> None:
    values = metadata(source) | TINY
    tokens = values["tokenizer.ggml.tokens"] = values["tokenizer.ggml.tokens"][:VOCAB]
    known = set(tokens)
    merges = values["tokenizer.ggml.merges"]
    values["tokenizer.ggml.merges"] = [m for m in merges if {*m.split(" "), m.replace(" ", "")} <= known]
    values["tokenizer.ggml.token_type"] = values["tokenizer.ggml.token_type"][:VOCAB]
    write(target, values, random_tensors(np.array([bool(WORD.fullmatch(text)) for text in tokens])))


def random_tensors(answered: Any) -> Iterator[Tensor]:
    """``answered``: tokens that a greedy answer may have. The others' logits are 0, far below the best."""
    rng = np.random.default_rng(8)

    def matrix(n_out: int, n_in: int) -> Any:
        return (rng.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)

    yield "token_embd.weight", matrix(VOCAB, WIDTH)
    for layer in range(LAYERS):
        of = f"blk.{layer}."
        yield of + "attn_norm.weight", np.ones(WIDTH, np.float32)
        yield of + "attn_q.weight", matrix(HEADS * HEAD_SIZE, WIDTH)
        yield of + "attn_k.weight", matrix(KV_HEADS * HEAD_SIZE, WIDTH)
        yield of + "attn_v.weight", matrix(KV_HEADS * HEAD_SIZE, WIDTH)
        yield of + "attn_output.weight", matrix(WIDTH, HEADS * HEAD_SIZE)
        yield of + "ffn_norm.weight", np.ones(WIDTH, np.float32)
        yield of + "ffn_gate.weight", matrix(HIDDEN, WIDTH)
        yield of + "ffn_up.weight", matrix(HIDDEN, WIDTH)
        yield of + "ffn_down.weight", matrix(WIDTH, HIDDEN)
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    yield "output.weight", matrix(VOCAB, WIDTH) * 3 * answered[:, None]


def metadata(source: GGUFReader) -> dict[str, Any]:
    own = ("GGUF.", "general.architecture", "general.file_type")
    return {name: field.contents() for name, field in source.fields.items() if not name.startswith(own)}


def write(target: Path, values: dict[str, Any], tensors: Iterable[Tensor]) -> None:
    """Of values whose type follows from the value: texts, truths, whole numbers of 32 bits, floats, lists."""
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, "llama")
    for name, value in values.items():
        kind = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    for name, numbers in tensors:
        writer.add_tensor(name, np.ascontiguousarray(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)


def main() -> None:
    make, source, target = sys.argv[1:]
    {"float32": float32_copy, "tiny": tiny}[make](GGUFReader(source), Path(target))


if __name__ == "__main__":
    main()
