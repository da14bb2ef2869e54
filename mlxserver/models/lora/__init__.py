"""LoRA adapters: files → low-rank products beside a model's layers, chosen for each row of a batch."""
