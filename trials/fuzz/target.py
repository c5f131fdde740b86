"""Defines a fuzz target: it takes inputs one after the other, for any time."""

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class Target(ABC):
    """A target of the fuzzing. name: in the table. directory: for its files."""

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def feed(self, dice: random.Random) -> bool:
        """Feeds one input, made with the dice. Returns True if it was accepted. Raises an error for a defect."""
