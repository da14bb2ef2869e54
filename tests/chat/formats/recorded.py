"""What models of each family write: reasoning, text and calls, with characters of several bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.formats.calls import Tools
from mlxserver.chat.formats.registry import FAMILIES, GENERIC
from mlxserver.chat.reasoning_tags import ReasoningTags

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "opts": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
    },
    "required": ["city"],
}
TOOLS = Tools({"get_weather": WEATHER, "ping": {"type": "object", "properties": {}}})
BY_NAME = {family.name: family for family in (*FAMILIES, GENERIC)}

THINK = ReasoningTags("<think>\n", "\n</think>\n\n")
TIGHT = ReasoningTags("<think>", "</think>")
NONE = ReasoningTags()


@dataclass(frozen=True, slots=True)
class Recording:
    family: str
    text: str
    content: str
    calls: tuple[tuple[str, str], ...]
    reasoning: str = ""
    tags: ReasoningTags = NONE
    ids: tuple[str, ...] = ()
    """Only where the model writes them."""

    @property
    def rules(self) -> AnswerRules:
        return AnswerRules(tags=self.tags, calls=BY_NAME[self.family].calls, tools=TOOLS, skips_space=True)


ARGUMENTS = '{"city": "Zürich 🏔", "days": 2, "opts": {"a": [1, true, null, "x}\\"]"]}}'
CITY = '{"city": "東京"}'
COMPACT = '{"city":"Zürich 🏔","days":2,"opts":{"a": [1, true, null]}}'
BOTH = (("get_weather", ARGUMENTS), ("ping", "{}"))
NAMED = '{"name": "get_weather", "arguments": ' + ARGUMENTS + "}"
PING = '{"name": "ping", "arguments": {}}'


def _dsml(block: str) -> str:
    return (
        f"Schön.\n\n<｜DSML｜{block}>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich 🏔</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="opts" string="false">{"a": [1, true, null]}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>\n'
        f"</｜DSML｜{block}>"
    )


TAGGED = (("get_weather", COMPACT), ("ping", "{}"))

RECORDINGS = (
    Recording(
        "hermes",
        f"<think>\nÜberlegen < 5\n</think>\n\nIch schaue nach.\n<tool_call>\n{NAMED}\n</tool_call>\n"
        f"<tool_call>\n{PING}\n</tool_call>",
        "Ich schaue nach.\n",
        BOTH,
        "Überlegen < 5",
        ReasoningTags("<think>\n", "\n</think>\n\n"),
    ),
    Recording("hermes", f"<tool_call>{NAMED}</tool_call><tool_call>{PING}</tool_call>", "", BOTH),
    Recording(
        "hermes",
        '<tool_call>\n{"arguments": {"city": "東京"}, "name": "get_weather"}\n</tool_call>',
        "",
        (("get_weather", CITY),),
    ),
    Recording("hermes", "No call: a < b, <tool, <b>é</b>.", "No call: a < b, <tool, <b>é</b>.", ()),
    Recording(
        "qwen3-coder",
        "Gut.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich 🏔\n</parameter>\n"
        '<parameter=days>\n2\n</parameter>\n<parameter=opts>\n{"a": [1, true, null]}\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "Gut.\n\n",
        TAGGED,
    ),
    Recording(
        "qwen3-coder",
        "<think>\nhm\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nfirst\n"
        'second "q" </b>\n</parameter>\n</function>\n</tool_call>',
        "",
        (("get_weather", '{"city":"first\\nsecond \\"q\\" </b>"}'),),
        "hm",
        THINK,
    ),
    Recording(
        "seed-oss",
        "<seed:think>Gedanke</seed:think>\nText.\n\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Zürich 🏔</parameter>\n<parameter=days>2</parameter>\n"
        "<parameter=opts>{'a': [1, True, None]}</parameter>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
        "Text.\n\n",
        TAGGED,
        "Gedanke",
        ReasoningTags("<seed:think>", "</seed:think>\n"),
    ),
    Recording(
        "glm-4.5",
        "<think>名前</think>\nText.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Zürich 🏔</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        '<arg_key>opts</arg_key>\n<arg_value>{"a": [1, true, null]}</arg_value>\n</tool_call>\n'
        "<tool_call>ping\n</tool_call>",
        "Text.\n",
        TAGGED,
        "名前",
        ReasoningTags("<think>", "</think>\n"),
    ),
    Recording(
        "glm-4.7",
        "Text.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich 🏔</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value><arg_key>opts</arg_key>"
        '<arg_value>{"a": [1, true, null]}</arg_value></tool_call><tool_call>ping</tool_call>',
        "Text.",
        TAGGED,
    ),
    Recording(
        "hunyuan",
        "Text.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Zürich 🏔</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "<arg_key:opensource>opts</arg_key:opensource>\n"
        '<arg_value:opensource>{"a": [1, true, null]}</arg_value:opensource>\n</tool_call:opensource>\n'
        "<tool_call:opensource>ping<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "Text.",
        TAGGED,
    ),
    Recording(
        "minimax-m2",
        "<think>\nх\n</think>\n\nText.\n<minimax:tool_call>\n"
        '<invoke name="get_weather">\n<parameter name="city">Zürich 🏔</parameter>\n'
        '<parameter name="days">2</parameter>\n<parameter name="opts">{"a": [1, true, null]}</parameter>\n'
        '</invoke>\n<invoke name="ping">\n</invoke>\n</minimax:tool_call>',
        "Text.\n",
        TAGGED,
        "х",
        THINK,
    ),
    Recording("minimax-m1", f"Text.\n<tool_calls>\n{NAMED}\n{PING}\n</tool_calls>", "Text.\n", BOTH),
    Recording("deepseek-v3.2", _dsml("function_calls"), "Schön.\n\n", TAGGED),
    Recording("deepseek-v4", _dsml("tool_calls"), "Schön.\n\n", TAGGED),
    Recording(
        "deepseek-r1",
        "<think>\n先\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        BOTH,
        "先",
        THINK,
    ),
    Recording(
        "deepseek-v3.1",
        "Gut.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "Gut.",
        BOTH,
    ),
    Recording(
        "mistral-nemo",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + ARGUMENTS + ', "id": "abcdefghi"}, '
        '{"name": "ping", "arguments": {}, "id": "123456789"}]',
        "",
        BOTH,
    ),
    Recording(
        "mistral-small-3.2",
        f"Ja.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{ARGUMENTS}"
        "[TOOL_CALLS]ping[CALL_ID]123456789[ARGS]{}",
        "Ja.",
        BOTH,
        ids=("abcdefghi", "123456789"),
    ),
    Recording(
        "ministral",
        f"[THINK]Hmm, [das][/THINK]Ja.[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]ping[ARGS]{{}}",
        "Ja.",
        BOTH,
        "Hmm, [das]",
        ReasoningTags("[THINK]", "[/THINK]"),
    ),
    Recording(
        "kimi-k2",
        "<think>そう</think>Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.ping:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "Ok.",
        BOTH,
        "そう",
        TIGHT,
        ("functions.get_weather:0", "functions.ping:1"),
    ),
    Recording(
        "functionary-3.1",
        f"Text.<function=get_weather>{ARGUMENTS}</function><function=ping>{{}}</function>",
        "Text.",
        BOTH,
    ),
    Recording(
        "solar-open",
        f"<|tool_calls|><|tool_call:begin|>aaaaaaaaaa<|tool_call:name|>get_weather<|tool_call:args|>{ARGUMENTS}"
        "<|tool_call:end|><|tool_call:begin|>bbbbbbbbbb<|tool_call:name|>ping<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>",
        "",
        BOTH,
        ids=("aaaaaaaaaa", "bbbbbbbbbb"),
    ),
    Recording(
        "llama3",
        '{"name": "get_weather", "parameters": ' + ARGUMENTS + "}",
        "",
        BOTH[:1],
    ),
    Recording(
        "llama3",
        'In JSON: {"a": {"b": 1}} und {"name": "unbekannt", "parameters": {}}.',
        'In JSON: {"a": {"b": 1}} und {"name": "unbekannt", "parameters": {}}.',
        (),
    ),
    Recording(
        "llama3",
        '{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "東京"}}}',
        "",
        (("get_weather", CITY),),
    ),
    Recording("generic", f"{NAMED}; {PING}", "", BOTH),
    Recording(
        "command-r7b",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        + ARGUMENTS
        + '},\n    {"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]<|END_ACTION|>',
        "",
        BOTH,
        ids=("0", "1"),
    ),
    Recording("command-r7b", "<|START_RESPONSE|>Grüße<|END_RESPONSE|>", "Grüße", ()),
    Recording(
        "command-r",
        'Text.\nAction:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        '{"city": "東京"}\n    }\n]```',
        "Text.\n",
        (("get_weather", CITY),),
    ),
    Recording(
        "gemma4",
        'Text.<|tool_call>call:get_weather{city:<|"|>Zürich 🏔<|"|>,days:2,opts:{a:[1,true,null]}}<tool_call|>'
        "<|tool_call>call:ping{}<tool_call|>",
        "Text.",
        (("get_weather", '{"city":"Zürich 🏔","days":2,"opts":{"a":[1,true,null]}}'), ("ping", "{}")),
    ),
    Recording(
        "function-gemma",
        '<start_function_call>call:get_weather{city:<escape>東京, "x"<escape>}<end_function_call>',
        "",
        (("get_weather", '{"city":"東京, \\"x\\""}'),),
    ),
    Recording(
        "gpt-oss",
        "<|channel|>analysis<|message|>Mal sehen…<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        "",
        BOTH[:1],
        "Mal sehen…",
    ),
    Recording(
        "gpt-oss",
        "<|channel|>analysis<|message|>Kurz.<|end|><|start|>assistant<|channel|>final<|message|>Grüße!",
        "Grüße!",
        (),
        "Kurz.",
    ),
    Recording(
        "lfm2",
        "Text.<|tool_call_start|>"
        "[get_weather(city='Zürich 🏔', days=2, opts={\"a\": [1, true, null]}), ping()]"
        "<|tool_call_end|>",
        "Text.",
        (("get_weather", '{"city":"Zürich 🏔","days":2,"opts":{"a":[1,true,null]}}'), ("ping", "{}")),
    ),
    Recording(
        "minicpm5",
        'Text.\n<function name="get_weather"><param name="city">Zürich 🏔</param><param name="days">2</param>'
        '<param name="opts">{"a": [1, true, null]}</param></function>\n<function name="ping"></function>',
        "Text.\n",
        TAGGED,
    ),
    Recording(
        "apertus",
        'Text.<|tools_prefix|>[{"get_weather": ' + ARGUMENTS + '}, {"ping": {}}]<|tools_suffix|>',
        "Text.",
        BOTH,
    ),
    Recording("apriel", f"Text.\n<tool_calls>[{NAMED}, {PING}]</tool_calls>", "Text.\n", BOTH),
    Recording("nemotron-nano-2", f"<TOOLCALL>[{NAMED}, {PING}]</TOOLCALL>", "", BOTH),
    Recording("firefunction", f"Text. functools[{NAMED}, {PING}]", "Text. ", BOTH),
    Recording("gigachat-3.1", f"Text.<|function_call|>{NAMED}", "Text.", BOTH[:1]),
    Recording("gigachat-3", f"Text.<|message_sep|>\n\nfunction call<|role_sep|>\n{NAMED}", "Text.", BOTH[:1]),
    Recording("cohere2", "<|START_TEXT|>Grüße<|END_TEXT|>", "Grüße", ()),
    Recording("lfm2.5", "<|tool_call_start|>[ping()]<|tool_call_end|>", "", (("ping", "{}"),)),
    Recording("lfm2-calls", "Nichts: <|tool_call_st", "Nichts: <|tool_call_st", ()),
)
