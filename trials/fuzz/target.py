"""Defines a fuzz target: it takes inputs one after the other, for any time."""

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class Target(ABC):
    """name: in the table. directory: for its files."""

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def feed(self, dice: random.Random) -> bool:
        """One input, made with the dice; whether it was taken for good. Raises for what must not happen."""
