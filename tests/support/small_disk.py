"""A small file system of its own that tests fill up and free again: a tmpfs, which only root may mount."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Self

_BALLAST = "ballast"
_CHUNK_BYTES = 1 << 20


class SmallDisk:
    """Mounted on `directory` within the context, with everything in it lost at the end."""

    def __init__(self, directory: Path, *, size_bytes: int) -> None:
        self.directory = directory
        self._size_bytes = size_bytes

    @staticmethod
    def can_be_mounted() -> bool:
        """True on Linux for root, where mounting is allowed (in many containers it is not)."""
        command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/tmp"]
        with contextlib.suppress(OSError):
            return os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
        return False

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        options = ["-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs"]
        subprocess.run(["mount", *options, str(self.directory)], check=True, capture_output=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a process that is just being killed may still have a file open.
        subprocess.run(["umount", "--lazy", str(self.directory)], check=True, capture_output=True)

    def fill(self) -> None:
        """Fills the disk to the last byte, including space that is freed while this runs."""
        with (self.directory / _BALLAST).open("ab", buffering=0) as ballast:
            size = _CHUNK_BYTES
            while size:
                try:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, size)
                except OSError:
                    size //= 2

    def free(self) -> None:
        (self.directory / _BALLAST).unlink(missing_ok=True)
