"""What options mean for each other, once all sources are read."""

from __future__ import annotations

from mlxserver.options.builder import Builder
from mlxserver.options.values import process_escapes

AUTO_SLOTS = 4


def finish(builder: Builder) -> None:
    """Completes the values in place."""
    _escapes(builder)
    _cors(builder)
    _batch(builder)
    _slots(builder)
    _names(builder)
    _tls(builder)
    _keys(builder)
    _cache_disk(builder)


def _escapes(builder: Builder) -> None:
    if builder.values["escape"]:
        for name in ("reverse_prompt", "dry_sequence_breaker"):
            builder.values[name] = tuple(process_escapes(text) for text in builder.values[name])


def _cors(builder: Builder) -> None:
    values = builder.values
    runs_tools = values["tools"] or values["mcp_servers_config"] or values["mcp_servers_json"]
    if runs_tools and "cors_origins" not in builder.given:
        values["cors_origins"] = "localhost"
        builder.notices.warning(
            "server tools or MCP servers are enabled, using localhost as default CORS origin "
            "(change via --cors-origins)"
        )


def _batch(builder: Builder) -> None:
    """A physical batch is never larger than a logical one, and 0 makes it as large."""
    values = builder.values
    n_batch, n_ubatch = values["batch_size"], values["ubatch_size"]
    if values["embedding"] and n_batch > n_ubatch:
        builder.notices.warning(f"embeddings enabled with n_batch ({n_batch}) > n_ubatch ({n_ubatch})")
        builder.notices.warning(f"setting n_batch = n_ubatch = {n_ubatch} to avoid assertion failure")
        values["batch_size"] = n_ubatch
    values["ubatch_size"] = min(values["ubatch_size"] or values["batch_size"], values["batch_size"])


def _slots(builder: Builder) -> None:
    if builder.values["parallel"] < 0:
        builder.values["parallel"] = AUTO_SLOTS
        builder.values["kv_unified"] = True


def _names(builder: Builder) -> None:
    """Without ``--alias`` the model is called by its source, as it was given."""
    values = builder.values
    name = values["hf_repo"] or values["docker_repo"] or values["model"]
    if not values["alias"] and name:
        values["alias"] = (name,)


def _tls(builder: Builder) -> None:
    if bool(builder.values["ssl_key_file"]) != bool(builder.values["ssl_cert_file"]):
        builder.notices.warning("TLS is off: it needs both --ssl-key-file and --ssl-cert-file")


def _keys(builder: Builder) -> None:
    if builder.given.keys() & {"api_key", "api_key_file"} and not builder.values["api_key"]:
        builder.notices.warning("the API key is empty: everybody is let in")


def _cache_disk(builder: Builder) -> None:
    details = ("cache_disk_size", "cache_disk_prefetch", "cache_disk_timeout")
    given = [f"--{name.replace('_', '-')}" for name in details if name in builder.given]
    if given and not builder.values["cache_disk"]:
        builder.notices.warning(f"{', '.join(given)}: no effect without --cache-disk")
