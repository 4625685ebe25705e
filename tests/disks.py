"""A small disk for tests, which can be full or read-only."""

import subprocess
from contextlib import suppress
from pathlib import Path

IN_A_NAMESPACE = ("unshare", "--map-root-user", "--mount")  # the start of a command that may mount
MEGABYTES, FILES = 4, 60


class SmallDisk:
    """A filesystem in memory, mounted at a folder, for a process in its own mount namespace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mount(f"size={MEGABYTES}m,nr_inodes={FILES}")

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self.folder / "ballast").open("ab", buffering=0) as ballast:
            for size in (2**16, 2**12):
                with suppress(OSError):
                    while ballast.write(bytes(size)):
                        pass

    def fill_with_files(self) -> None:
        """Create as many files as the disk can hold."""
        with suppress(OSError):
            for number in range(FILES):
                (self.folder / f"file-{number}").touch()

    def empty(self) -> None:
        """Free the space again."""
        for path in (self.folder / "ballast", *self.folder.glob("file-*")):
            path.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Remount the disk read-only; no file may be open for writing."""
        self._mount("remount,ro")

    def make_writable(self) -> None:
        self._mount("remount,rw")

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def _mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)
