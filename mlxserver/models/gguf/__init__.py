"""GGUF files as MLX models."""
