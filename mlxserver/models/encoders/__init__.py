"""Models that read a whole text at once and generate nothing: mlx-lm has none of them."""
