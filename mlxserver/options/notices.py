"""What reading the options has to tell: kept until logging is set up, which the options decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Notice:
    """``plain`` lines go to stderr as they are; the others are log lines of that level."""

    level: Literal["plain", "info", "warning"]
    text: str


class Notices(list[Notice]):
    def plain(self, text: str) -> None:
        self.append(Notice("plain", text))

    def info(self, text: str) -> None:
        self.append(Notice("info", text))

    def warning(self, text: str) -> None:
        self.append(Notice("warning", text))

    def lines(self) -> str:
        """For an exit before logging exists."""
        return "".join(f"{notice.text}\n" for notice in self if notice.level != "info")
