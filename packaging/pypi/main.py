"""Runs the program `rialto`, which pip installed beside this package."""

import os
import sys
import sysconfig


def program() -> str:
    """Returns the path of the program."""
    name = "rialto.exe" if os.name == "nt" else "rialto"
    folders = [sysconfig.get_path("scripts"), os.path.dirname(os.path.realpath(sys.argv[0]))]
    if sys.version_info >= (3, 10):
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    sys.exit(f"rialto-mcp: {name} is in none of {', '.join(folders)}; install rialto-mcp again")


def main() -> None:
    """Becomes the program. Windows cannot, and waits for it."""
    path = program()
    if os.name == "nt":
        import subprocess

        sys.exit(subprocess.call([path, *sys.argv[1:]]))
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
