"""Text to token ids and back, by llama.cpp's rules, from a GGUF file's metadata or a model folder."""

from mlxserver.models.tokenizer.folder import from_folder
from mlxserver.models.tokenizer.gguf import from_gguf

__all__ = ["from_folder", "from_gguf"]
