"""What the chat layer raises; the API layer answers it as the error ``type`` says."""

from __future__ import annotations


class ChatError(Exception):
    """A request that cannot be turned into a prompt."""

    type = "server_error"


class InvalidChat(ChatError):
    """A fault of the request that llama-server answers with status 400."""

    type = "invalid_request_error"


class TemplateError(ChatError):
    """A chat template that cannot be parsed, raised an exception or ran away."""
