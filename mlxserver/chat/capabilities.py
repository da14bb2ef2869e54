"""What a chat template can show, found by rendering small chats and watching which values it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, SupportsIndex

from jinja2 import Template, Undefined

from mlxserver.chat.errors import TemplateError
from mlxserver.chat.jinja_env import TemplateEnvironment, compile_template, render, to_json


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Field names and order are those of ``/props``' ``chat_template_caps``."""

    supports_object_arguments: bool = False
    supports_parallel_tool_calls: bool = True
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False
    supports_string_content: bool = True
    supports_system_role: bool = True
    supports_tool_calls: bool = True
    supports_tools: bool = True
    supports_typed_content: bool = False

    def json(self) -> dict[str, bool]:
        return asdict(self)


def preserve_reasoning(enabled: bool) -> dict[str, bool]:
    """The names under which templates know whether old reasoning stays in the prompt."""
    return {
        "preserve_thinking": enabled,
        "clear_thinking": not enabled,
        "truncate_history_thinking": not enabled,
        "drop_thinking": not enabled,
    }


def probe(source: str) -> Capabilities:
    """Raises ``TemplateError`` only for a template that cannot be parsed."""
    template = _Probe(source)
    string_content, typed_content = template.content_forms()
    tools, tool_calls, object_arguments = template.tools()
    return Capabilities(
        supports_object_arguments=object_arguments,
        supports_parallel_tool_calls=template.parallel_calls(object_arguments),
        supports_preserve_reasoning=template.keeps_reasoning(),
        supports_reasoning_effort=template.reasoning_effort(),
        supports_string_content=string_content,
        supports_system_role=template.system_role(),
        supports_tool_calls=tool_calls,
        supports_tools=tools,
        supports_typed_content=typed_content,
    )


class _Watched(str):
    """A string that knows whether it was looked at, and whether as if it were a list of parts."""

    is_used = False
    is_iterated = False

    def __iter__(self) -> Iterator[str]:
        self.is_used = self.is_iterated = True
        return super().__iter__()

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        self.is_used = True
        if not isinstance(key, slice):
            self.is_iterated = True
        return super().__getitem__(key)

    def __str__(self) -> str:
        self.is_used = True
        return super().__str__()

    def __add__(self, other: str) -> str:
        self.is_used = True
        return super().__add__(other)

    def __radd__(self, other: str) -> str:
        self.is_used = True
        return other + super().__str__()

    def __bool__(self) -> bool:
        self.is_used = True
        return len(self) > 0

    def __eq__(self, other: object) -> bool:
        self.is_used = True
        return super().__eq__(other)

    def __hash__(self) -> int:
        self.is_used = True
        return super().__hash__()


class _WatchingEnvironment(TemplateEnvironment):
    """Remembers every value that a template reads out of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[int, Any] = {}  # keeping the values alive keeps their ids unique
        self.filters["tojson"] = self._watched_json
        self.filters["string"] = self._watched_text
        self.tests["iterable"] = self._is_iterable
        self.tests["defined"] = self._is_defined

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute == "get" and isinstance(obj, dict):
            return lambda *args: self._mark(obj.get(*args))
        return self._mark(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self._mark(super().getitem(obj, argument))

    def was_used(self, value: object) -> bool:
        return id(value) in self.used or getattr(value, "is_used", False)

    def _mark(self, value: Any) -> Any:
        self.used[id(value)] = value
        return value

    def _watched_json(self, value: Any, *args: Any, **kwargs: Any) -> str:
        self._mark_deep(value)
        return to_json(value, *args, **kwargs)

    def _watched_text(self, value: Any) -> str:
        self._mark_deep(value)
        return str(value)

    def _mark_deep(self, value: Any) -> None:
        self._mark(value)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for item in inner:
            self._mark_deep(item)

    def _is_iterable(self, value: Any) -> bool:
        return isinstance(value, str | list | dict | tuple) or hasattr(value, "__iter__")

    def _is_defined(self, value: Any) -> bool:
        return not isinstance(self._mark(value), Undefined)


class _Probe:
    """The questions; each renders one chat."""

    def __init__(self, source: str) -> None:
        self.environment = _WatchingEnvironment()
        self.template: Template = compile_template(self.environment, source)

    def render(self, messages: list[Any], **context: Any) -> str | None:
        """The text, or ``None`` where the template refuses the chat."""
        values = {"tools": [], "bos_token": "", "eos_token": "", "add_generation_prompt": True}
        try:
            return render(self.template, {**values, **context, "messages": messages})
        except TemplateError:
            return None

    def content_forms(self) -> tuple[bool, bool]:
        """(string content works, content is read as a list of parts)."""
        content = _Watched("STRING_MARKER")
        text = self.render([{"role": "user", "content": content}])
        is_lost = text is None or (content.is_iterated and "STRING_MARKER" not in text)
        return not is_lost, content.is_iterated

    def system_role(self) -> bool:
        content = _Watched("System message")
        self.render([{"role": "system", "content": content}, _user()])
        return self.environment.was_used(content)

    def tools(self) -> tuple[bool, bool, bool]:
        """(tools, tool calls, call arguments as objects)."""
        argument, name, tools = _Watched("value"), _Watched("tool1"), self._tools
        calls = [_call("call00001", {"arg": argument})]
        if self.render(_tool_chat(calls), tools=tools(name)) is None:
            return self._tools_with_text_arguments(assumed=(True, True))
        answer = (self._used(name), self._used(calls))
        if answer[1] and self._used(argument):
            return *answer, True
        return self._tools_with_text_arguments(assumed=answer)

    def _tools_with_text_arguments(self, assumed: tuple[bool, bool]) -> tuple[bool, bool, bool]:
        name = _Watched("tool1")
        calls = [_call("call00001", '{"arg": "value"}')]
        if self.render(_tool_chat(calls), tools=self._tools(name)) is None:
            return False, False, False
        return assumed[0] and self._used(name), assumed[1] and self._used(calls), False

    def parallel_calls(self, object_arguments: bool) -> bool:
        arguments: Any = {"arg": "value"} if object_arguments else '{"arg": "value"}'
        calls = [_call("call00001", arguments), _call("call00002", arguments)]
        if self.render(_tool_chat(calls), tools=self._tools("tool1")) is None:
            return False
        return self._used(calls[1]["function"])

    def keeps_reasoning(self) -> bool:
        """Reasoning further back than the last answer is still shown."""
        marker = "<REASONING_CONTENT_PLACEHOLDER>"
        chat = [_user(), _reasoned(marker), _user(), _reasoned("Reasoning content"), _user()]
        text = self.render(chat, enable_thinking=True, **preserve_reasoning(True))
        return text is not None and marker in text

    def reasoning_effort(self) -> bool:
        effort = _Watched("low")
        self.render([_user()], enable_thinking=True, reasoning_effort=effort, reasoning_strength=effort)
        return self._used(effort)

    def _used(self, value: object) -> bool:
        return self.environment.was_used(value)

    @staticmethod
    def _tools(name: str) -> list[dict[str, Any]]:
        properties = {"arg": {"type": "string", "description": "Arg description"}}
        parameters = {"type": "object", "properties": properties, "required": ["arg"]}
        function = {"name": name, "description": "Tool description", "parameters": parameters}
        return [{"name": "tool", "type": "function", "function": function}]


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "User message"}


def _reasoned(reasoning: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "Assistant message", "reasoning_content": reasoning}


def _call(id: str, arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "tool1", "arguments": arguments}}


def _tool_chat(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One turn of tool use between two turns of the user."""
    return [
        _user(),
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "Tool response", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "The tool response was 'tool response'"},
        _user(),
    ]
