"""The chat formats that llama.cpp knows by name, for ``--chat-template NAME`` and ``--no-jinja``.

A format is a table of what stands before and after a message of each role; the few that depend on
more than the role are functions. Facts: llama.cpp's list of built-in templates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Turn = tuple[str, str]
"""A role and its text."""

Formatter = Callable[[Sequence[Turn], bool], str]
"""Turns and whether an answer is to begin, to the prompt."""

ALL_ROLES = frozenset(["system", "user", "assistant", "tool"])


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """``{role}`` in the frames is the message's role."""

    roles: dict[str, tuple[str, str]] = field(default_factory=dict)
    other: tuple[str, str] | None = None
    """The frame of every role without its own; without one such messages are left out."""
    answer: str = ""
    """What makes the model answer."""
    start: str = ""
    trimmed: frozenset[str] = frozenset()
    """The roles whose text loses the white space around it."""

    def __call__(self, turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        text = self.start + "".join(self._turn(role, content) for role, content in turns)
        return text + self.answer if add_generation_prompt else text

    def _turn(self, role: str, content: str) -> str:
        frame = self.roles.get(role, self.other)
        if frame is None:
            return ""
        shown = content.strip() if role in self.trimmed or "*" in self.trimmed else content
        return frame[0].replace("{role}", role) + shown + frame[1]


_EVERY = frozenset("*")


def _mistral(leading: str, trailing: str, trims_answers: bool) -> Formatter:
    def format(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        text, is_inside = "", False
        for role, content in turns:
            if not is_inside:
                text, is_inside = f"{text}{leading}[INST]{trailing}", True
            if role == "system":
                text += f"{content}\n\n"
            elif role == "user":
                text += f"{content}{leading}[/INST]"
            else:
                text += f"{trailing}{content.strip() if trims_answers else content}</s>"
                is_inside = False
        return text

    return format


def _llama2(has_system: bool = True, repeats_bos: bool = False, strips: bool = False) -> Formatter:
    def format(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        text, is_inside = "[INST] ", True
        for role, content in turns:
            shown = content.strip() if strips else content
            if not is_inside:
                text, is_inside = f"{text}{'<s>' if repeats_bos else ''}[INST] ", True
            if role == "system":
                text += f"<<SYS>>\n{shown}\n<</SYS>>\n\n" if has_system else f"{shown}\n"
            elif role == "user":
                text += f"{shown} [/INST]"
            else:
                text, is_inside = f"{text}{shown}</s>", False
        return text

    return format


def _monarch(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    text = "<s>".join(f"{role}\n{content}</s>\n" for role, content in turns)
    return f"{text}<s>assistant\n" if add_generation_prompt else text


def _gemma(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    text = system = ""
    for role, content in turns:
        if role == "system":
            system += content.strip()
            continue
        name = "model" if role == "assistant" else role
        before = f"{system}\n\n" if system and name != "model" else ""
        system = "" if before else system
        text += f"<start_of_turn>{name}\n{before}{content.strip()}<end_of_turn>\n"
    return f"{text}<start_of_turn>model\n" if add_generation_prompt else text


def _orion(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    text = system = ""
    for role, content in turns:
        if role == "system":
            system += content
        elif role == "user":
            before = f"{system}\n\n" if system else ""
            text, system = f"{text}Human: {before}{content}\n\nAssistant: </s>", ""
        else:
            text += f"{content}</s>"
    return text


def _openchat(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    def turn(role: str, content: str) -> str:
        name = "" if role == "system" else f"GPT4 Correct {role[:1].upper()}{role[1:]}: "
        return f"{name}{content}<|end_of_turn|>"

    text = "".join(turn(role, content) for role, content in turns)
    return f"{text}GPT4 Correct Assistant:" if add_generation_prompt else text


def _rwkv(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    names = {"system": "System", "user": "User", "assistant": "Assistant"}
    text = "".join(f"{names[role]}: {content.strip()}\n\n" for role, content in turns if role in names)
    return f"{text}Assistant:" if turns and turns[-1][0] == "user" else text


def _gigachat(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    has_system = bool(turns) and turns[0][0] == "system"
    text = f"<s>{turns[0][1]}<|message_sep|>" if has_system else "<s>"
    for role, content in turns[1 if has_system else 0 :]:
        if role in ("user", "assistant"):
            text += f"{role}<|role_sep|>{content}<|message_sep|>"
        if role == "user":
            text += "available functions<|role_sep|>[]<|message_sep|>"
    return f"{text}assistant<|role_sep|>" if add_generation_prompt else text


def _bailing(end: str, answer: str, default_system: str = "") -> Formatter:
    def format(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        has_system = bool(turns) and turns[0][0] == "system"
        text = "" if has_system else default_system
        for role, content in turns:
            name = "HUMAN" if role == "user" else role.upper()
            text += f"<role>{name}</role>{content}{end}"
        return text + answer if add_generation_prompt else text

    return format


def _hunyuan_dense(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    text = f"{turns[0][1]}<｜hy_place▁holder▁no▁3｜>" if turns and turns[0][0] == "system" else ""
    for role, content in turns:
        if role == "assistant":
            text += f"<｜hy_Assistant｜>{content}<｜hy_place▁holder▁no▁2｜>"
        elif role == "user":
            text += f"<｜hy_User｜>{content}<｜hy_Assistant｜>"
    return text


def _hunyuan_vl(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    ends = {"user": "<｜hy_User｜>", "assistant": "<｜hy_Assistant｜>"}
    text = "<｜hy_begin▁of▁sentence｜>"
    for i, (role, content) in enumerate(turns):
        if i == 0 and role == "system":
            text += f"{content}<｜hy_place▁holder▁no▁3｜>"
        elif role in ends:
            text += content + ends[role]
    return text


def _pangu(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
    names = {"system": "系统", "user": "用户", "assistant": "助手", "tool": "工具", "function": "方法"}
    text = "[unused9]系统：[unused10]" if turns and turns[0][0] != "system" else ""
    for role, content in turns:
        text += f"[unused9]{names[role]}：{content}[unused10]" if role in names else ""
    return f"{text}[unused9]助手：" if add_generation_prompt else text


def _granite(names_calls: bool) -> Formatter:
    answer = "<|start_of_role|>assistant<|end_of_role|>"

    def format(turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        text = ""
        for role, content in turns:
            is_call = role == "assistant_tool_call"
            name = "assistant" if is_call and not names_calls else role
            text += f"<|start_of_role|>{name}<|end_of_role|>{'<|tool_call|>' if is_call else ''}"
            text += f"{content}<|end_of_text|>\n"
        return text + answer if add_generation_prompt else text

    return format


def _mistral_v7(space: str) -> TurnFormat:
    roles = {
        "system": (f"[SYSTEM_PROMPT]{space}", "[/SYSTEM_PROMPT]"),
        "user": (f"[INST]{space}", "[/INST]"),
    }
    return TurnFormat(roles, (space, "</s>"))


def _vicuna(system: tuple[str, str]) -> TurnFormat:
    roles = {"system": system, "user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}
    return TurnFormat(roles, answer="ASSISTANT:")


def _exaone(frames: dict[str, tuple[str, str]], answer: str) -> TurnFormat:
    return TurnFormat(frames, answer=answer, trimmed=_EVERY)


def _tagged(
    frame: tuple[str, str], answer: str, trimmed: frozenset[str] = frozenset(), start: str = ""
) -> TurnFormat:
    """The same frame for every role."""
    return TurnFormat(other=frame, answer=answer, trimmed=trimmed, start=start)


_COMMAND_R = {
    role: (f"<|START_OF_TURN_TOKEN|><|{name}_TOKEN|>", "<|END_OF_TURN_TOKEN|>")
    for role, name in {"system": "SYSTEM", "user": "USER", "assistant": "CHATBOT"}.items()
}
_EXAONE_3 = {
    "system": ("[|system|]", "[|endofturn|]\n"),
    "user": ("[|user|]", "\n"),
    "assistant": ("[|assistant|]", "[|endofturn|]\n"),
}
_KIMI = {
    "system": ("<|im_system|>system<|im_middle|>", "<|im_end|>"),
    "user": ("<|im_user|>user<|im_middle|>", "<|im_end|>"),
    "assistant": ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"),
    "tool": ("<|im_system|>tool<|im_middle|>", "<|im_end|>"),
}

FORMATS: dict[str, Formatter] = {
    "bailing": _bailing("", "<role>ASSISTANT</role>"),
    "bailing-think": _bailing("", "<role>ASSISTANT</role><think>"),
    "bailing2": _bailing(
        "<|role_end|>", "<role>ASSISTANT</role>", "<role>SYSTEM</role>detailed thinking off<|role_end|>"
    ),
    "chatglm3": _tagged(("<|{role}|>\n ", ""), "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": _tagged(("<|{role}|>\n", ""), "<|assistant|>\n", start="[gMASK]<sop>"),
    "chatml": _tagged(("<|im_start|>{role}\n", "<|im_end|>\n"), "<|im_start|>assistant\n"),
    "command-r": TurnFormat(_COMMAND_R, answer=_COMMAND_R["assistant"][0], trimmed=_EVERY),
    "deepseek": TurnFormat(
        {
            "system": ("", ""),
            "user": ("### Instruction:\n", "\n"),
            "assistant": ("### Response:\n", "\n<|EOT|>\n"),
        },
        answer="### Response:\n",
    ),
    "deepseek-ocr": _tagged(("", ""), ""),
    "deepseek2": TurnFormat(
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "\n\n"),
            "assistant": ("Assistant: ", "<｜end▁of▁sentence｜>"),
        },
        answer="Assistant:",
    ),
    "deepseek3": TurnFormat(
        {
            "system": ("", "\n\n"),
            "user": ("<｜User｜>", ""),
            "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        },
        answer="<｜Assistant｜>",
    ),
    "exaone-moe": _exaone(
        {role: (f"<|{role}|>\n", "<|endofturn|>\n") for role in sorted(ALL_ROLES)},
        "<|assistant|>\n",
    ),
    "exaone3": _exaone(_EXAONE_3, "[|assistant|]"),
    "exaone4": _exaone({**_EXAONE_3, "tool": ("[|tool|]", "[|endofturn|]\n")}, "[|assistant|]"),
    "falcon3": _tagged(("<|{role}|>\n", "\n"), "<|assistant|>\n"),
    "gemma": _gemma,
    "gigachat": _gigachat,
    "glmedge": _tagged(("<|{role}|>\n", ""), "<|assistant|>"),
    "gpt-oss": TurnFormat(
        {"assistant": ("<|start|>assistant<|message|>", "<|return|>")},
        ("<|start|>{role}<|message|>", "<|end|>"),
        "<|start|>assistant",
    ),
    "granite": _granite(names_calls=True),
    "granite-4.0": _granite(names_calls=False),
    "granite-4.1": _granite(names_calls=False),
    "grok-2": TurnFormat(
        {
            "system": ("System: ", "<|separator|>\n\n"),
            "user": ("Human: ", "<|separator|>\n\n"),
            "assistant": ("Assistant: ", "<|separator|>\n\n"),
        },
        answer="Assistant:",
        trimmed=frozenset(["system", "user"]),
    ),
    "hunyuan-dense": _hunyuan_dense,
    "hunyuan-moe": TurnFormat(
        {"system": ("<|startoftext|>", "<|extra_4|>"), "assistant": ("", "<|eos|>")},
        ("<|startoftext|>", "<|extra_0|>"),
    ),
    "hunyuan-vl": _hunyuan_vl,
    "kimi-k2": TurnFormat(_KIMI, ("", "<|im_end|>"), _KIMI["assistant"][0]),
    "llama2": _llama2(has_system=False),
    "llama2-sys": _llama2(),
    "llama2-sys-bos": _llama2(repeats_bos=True),
    "llama2-sys-strip": _llama2(strips=True),
    "llama3": _tagged(
        ("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        _EVERY,
    ),
    "llama4": _tagged(
        ("<|header_start|>{role}<|header_end|>\n\n", "<|eot|>"),
        "<|header_start|>assistant<|header_end|>\n\n",
        _EVERY,
    ),
    "megrez": _tagged(
        ("<|role_start|>{role}<|role_end|>", "<|turn_end|>"), "<|role_start|>assistant<|role_end|>"
    ),
    "minicpm": TurnFormat({"user": ("<用户>", "<AI>")}, ("", ""), trimmed=_EVERY),
    "mistral-v1": _mistral(" ", " ", trims_answers=False),
    "mistral-v3": _mistral("", " ", trims_answers=True),
    "mistral-v3-tekken": _mistral("", "", trims_answers=False),
    "mistral-v7": _mistral_v7(" "),
    "mistral-v7-tekken": _mistral_v7(""),
    "monarch": _monarch,
    "openchat": _openchat,
    "orion": _orion,
    "pangu-embedded": _pangu,
    "phi3": _tagged(("<|{role}|>\n", "<|end|>\n"), "<|assistant|>\n"),
    "phi4": _tagged(("<|im_start|>{role}<|im_sep|>", "<|im_end|>"), "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": _rwkv,
    "seed_oss": _tagged(
        ("<seed:bos>{role}\n", "<seed:eos>"), "<seed:bos>assistant\n", frozenset(["assistant"])
    ),
    "smolvlm": TurnFormat(
        {"system": ("", "\n\n"), "user": ("User: ", "<end_of_utterance>\n")},
        ("Assistant: ", "<end_of_utterance>\n"),
        "Assistant:",
        "<|im_start|>",
    ),
    "solar-open": _tagged(("<|begin|>{role}<|content|>", "<|end|>"), "<|begin|>assistant"),
    "vicuna": _vicuna(("", "\n\n")),
    "vicuna-orca": _vicuna(("SYSTEM: ", "\n")),
    "yandex": TurnFormat(
        {"user": (" Пользователь: ", "\n\n"), "assistant": (" Ассистент: ", "\n\n")},
        answer=" Ассистент:[SEP]",
    ),
    "zephyr": _tagged(("<|{role}|>\n", "<|endoftext|>\n"), "<|assistant|>\n"),
}
"""llama.cpp's names, sorted."""

DOTS1 = TurnFormat(
    {
        "system": ("<|system|>", "<|endofsystem|>"),
        "user": ("<|userprompt|>", "<|endofuserprompt|>"),
    },
    ("<|response|>", "<|endofresponse|>"),
    "<|response|>",
)
"""Recognised in a model, but without a name."""
