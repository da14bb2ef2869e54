"""Whom a request belongs to."""

from __future__ import annotations

from starlette.requests import Request


def tenant_of(request: Request) -> str:
    """A name for the API key that was shown, which does not tell it; empty where no keys are asked for."""
    tenant: str = request.scope.get("tenant", "")
    return tenant
