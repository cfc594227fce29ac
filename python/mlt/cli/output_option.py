"""Options that name an output file or folder: a wrong one ends the command before its work."""

from __future__ import annotations

from pathlib import Path

from mlt._shared.output_files import UnwritableError, check_file, check_folder
from mlt.cli.parsed_option import ParsedOption

PICTURES = (".png", ".svg", ".pdf")


class OutputOption(ParsedOption):
    """``type=`` of click's options, ``parser=`` of typer's.

    ``picture``: one of PICTURES, never standard output. ``folder``: a folder of files.
    """

    name = __name__ = "path"

    def __init__(self, *, picture: bool = False, folder: bool = False) -> None:
        self._picture, self._folder = picture, folder

    def read(self, value: object) -> Path:
        """The path. Raises UnwritableError."""
        path = Path(str(value))
        if self._folder:
            if str(path) == "-":
                raise UnwritableError(path, "several files cannot go to standard output; name a folder")
            check_folder(path)
        elif str(path) != "-":
            check_file(path, suffixes=PICTURES if self._picture else ())
        elif self._picture:
            raise UnwritableError(path, "a picture cannot go to standard output; name a .png, .svg or .pdf file")
        return path


TEXT_FILE, PICTURE, FOLDER = OutputOption(), OutputOption(picture=True), OutputOption(folder=True)
