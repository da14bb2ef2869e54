"""What can go wrong while a model is found and loaded."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be served; the message is one line for the person who started the server."""
