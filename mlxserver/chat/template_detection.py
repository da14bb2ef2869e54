"""Which built-in format a jinja template is, told from the marks in its source (for ``--no-jinja``)."""

from __future__ import annotations

from mlxserver.chat.builtin_templates import DOTS1, FORMATS, Formatter

_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("phi4", ("<|im_start|>", "<|im_sep|>")),
    ("smolvlm", ("<|im_start|>", "<end_of_utterance>")),
    ("chatml", ("<|im_start|>",)),
    ("mistral-v7", ("[INST]", "[SYSTEM_PROMPT]")),
    ("mistral-v1", ("[INST]", "' [INST] ' + system_message", " [INST]")),
    ("mistral-v1", ("[INST]", "[AVAILABLE_TOOLS]", " [INST]")),
    ("mistral-v3-tekken", ("[INST]", "[AVAILABLE_TOOLS]", '"[INST]"')),
    ("mistral-v3", ("[INST]", "[AVAILABLE_TOOLS]")),
    ("llama2-sys-strip", ("[INST]", "content.strip()")),
    ("llama2-sys-bos", ("[INST]", "bos_token + '[INST]")),
    ("llama2-sys", ("[INST]", "<<SYS>>")),
    ("llama2", ("[INST]",)),
    ("phi3", ("<|assistant|>", "<|end|>")),
    ("chatglm4", ("[gMASK]<sop>",)),
    ("exaone-moe", ("<|assistant|>", "<|user|>", "<|tool_declare|>")),
    ("falcon3", ("<|assistant|>", "<|user|>", "</s>")),
    ("glmedge", ("<|assistant|>", "<|user|>")),
    ("glmedge", ("<|{{ item['role'] }}|>", "<|begin_of_image|>")),
    ("zephyr", ("<|user|>", "<|endoftext|>")),
    ("monarch", ("bos_token + message['role']",)),
    ("gemma", ("<start_of_turn>",)),
    ("orion", ("'\\n\\nAssistant: ' + eos_token",)),
    ("openchat", ("GPT4 Correct ",)),
    ("vicuna-orca", ("USER: ", "ASSISTANT: ", "SYSTEM: ")),
    ("vicuna", ("USER: ", "ASSISTANT: ")),
    ("deepseek", ("### Instruction:", "<|EOT|>")),
    ("command-r", ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>")),
    ("llama3", ("<|start_header_id|>", "<|end_header_id|>")),
    ("chatglm3", ("[gMASK]sop",)),
    ("minicpm", ("<用户>",)),
    ("deepseek2", ("'Assistant: ' + message['content'] + eos_token",)),
    ("deepseek3", ("<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>")),
    ("exaone4", ("[|system|]", "[|assistant|]", "[|endofturn|]", "[|tool|]")),
    ("exaone3", ("[|system|]", "[|assistant|]", "[|endofturn|]")),
    ("rwkv-world", ("rwkv-world",)),
    ("rwkv-world", ("{{- 'User: ' + message['content']|trim + '\\n\\n' -}}",)),
    ("granite-4.0", ("<|start_of_role|>", "<tool_call>", "g4_default_system_message")),
    ("granite-4.0", ("<|start_of_role|>", "<tools>", "g4_default_system_message")),
    ("granite-4.1", ("<|start_of_role|>", "<tool_call>")),
    ("granite-4.1", ("<|start_of_role|>", "<tools>")),
    ("granite", ("<|start_of_role|>",)),
    (
        "gigachat",
        (
            "message['role'] + additional_special_tokens[0] + "
            "message['content'] + additional_special_tokens[1]",
        ),
    ),
    ("megrez", ("<|role_start|>",)),
    ("yandex", (" Ассистент:",)),
    ("bailing", ("<role>ASSISTANT</role>", "'HUMAN'")),
    ("bailing-think", ("<role>ASSISTANT</role>", '"HUMAN"', "<think>")),
    ("bailing2", ("<role>ASSISTANT</role>", "<role>HUMAN</role>", "<|role_end|>")),
    ("llama4", ("<|header_start|>", "<|header_end|>")),
    ("dots1", ("<|endofuserprompt|>",)),
    ("hunyuan-moe", ("<|extra_0|>", "<|extra_4|>")),
    ("gpt-oss", ("<|start|>", "<|channel|>")),
    ("hunyuan-vl", ("<｜hy_Assistant｜>", "<｜hy_begin▁of▁sentence｜>")),
    ("hunyuan-dense", ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁3｜>")),
    ("kimi-k2", ("<|im_assistant|>assistant<|im_middle|>",)),
    ("seed_oss", ("<seed:bos>",)),
    ("grok-2", ("'Assistant: '  + message['content'] + '<|separator|>",)),
    ("pangu-embedded", ("[unused9]系统：[unused10]",)),
    ("solar-open", ("<|begin|>", "<|end|>", "<|content|>")),
)
"""(format, what must all occur in the source); the first that fits counts."""


def detect_format(source: str) -> Formatter | None:
    """The format named by ``source``, or the one whose marks occur in it."""
    if source in FORMATS:
        return FORMATS[source]
    marked = f"[INST]{source}" if source.startswith("mistral") else source
    for name, marks in _RULES:
        if all(mark in marked for mark in marks):
            return FORMATS.get(name, DOTS1)
    return None
