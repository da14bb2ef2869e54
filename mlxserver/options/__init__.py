"""llama-server's command line, environment and config files, read from the tables in compat/."""

from mlxserver.options.exits import Exit
from mlxserver.options.options import Options, parse_command_line, require_model

__all__ = ["Exit", "Options", "parse_command_line", "require_model"]
