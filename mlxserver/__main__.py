"""The command: options, then log, then the server; ``validate`` as its first word is another command."""

from __future__ import annotations

import os
import sys

from mlxserver.options import Exit, Options, parse_command_line, require_model
from mlxserver.telemetry import log


def main() -> int:
    """Runs the server, or what the first word names; the process's exit code."""
    if sys.argv[1:2] == ["validate"]:
        from mlxserver.validate.command import main as validate

        return validate(sys.argv[2:])
    try:
        options = parse_command_line(sys.argv[1:], os.environ)
        require_model(options)
        check_template(options)
        check_grammar(options)
    except Exit as end:
        sys.stdout.write(end.stdout)
        sys.stderr.write(end.stderr)
        return end.code
    log.configure(options)
    from mlxserver.serving import serve

    return serve(options)


def check_template(options: Options) -> None:
    """Raises ``Exit`` for a ``--chat-template`` that cannot render a message."""
    if not options.chat_template:
        return
    from mlxserver.chat.errors import ChatError
    from mlxserver.chat.messages import Message
    from mlxserver.chat.template import Chat, make_template

    try:
        make_template(options.chat_template, options.jinja).render(Chat((Message("user", "test"),)))
    except ChatError as error:
        text = f"error: the supplied chat template is not supported: {options.chat_template}\n{error}\n"
        raise Exit(1, stderr=text) from None


def check_grammar(options: Options) -> None:
    """Raises ``Exit`` for a ``--grammar`` or ``--json-schema`` that no request could follow."""
    if not options.grammar and options.json_schema is None:
        return
    from mlxserver.sampling.grammar.compiler import check_without_tokens
    from mlxserver.sampling.grammar.nodes import GrammarError

    try:
        check_without_tokens(options.grammar, options.json_schema)
    except GrammarError as error:
        name = "grammar" if options.grammar else "JSON schema"
        raise Exit(1, stderr=f"error: the supplied {name} cannot be used: {error}\n") from None


if __name__ == "__main__":
    sys.exit(main())
