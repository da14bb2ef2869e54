"""GPT-OSS."""

from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.harmony import Harmony

FAMILIES = (
    Family("gpt-oss", ("<|channel|>", "<|message|>"), Harmony(), without_calls=Harmony(finds_calls=False)),
)
