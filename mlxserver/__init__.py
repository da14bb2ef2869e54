"""A drop-in replacement for llama.cpp's llama-server that runs models with MLX."""

__version__ = "0.1.0"
