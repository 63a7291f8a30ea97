"""What a machine must have beside Python packages: a browser, Node, a Vulkan device for tests. Found, installed, or asked for.

`python -m specdec_tools.machine browser|node|vulkan`. As root on Debian a missing thing is installed by apt-get; elsewhere the message
says what to install. Standard library only, apart from Playwright's own installer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .browser import CHROME_NAMES, find_chrome

MIN_NODE = 18
FONTS = ("fonts-dejavu-core", "fonts-noto-color-emoji")  # text and emoji on screenshots


def can_apt() -> bool:
    """Root on a machine with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages: str) -> bool:
    """Install Debian packages; False when apt-get fails."""
    print(f"setup: apt-get install {' '.join(packages)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "-y", "--no-install-recommends", "install", *packages],
    )
    return all(
        subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL).returncode == 0
        for command in commands
    )


def browser() -> str | None:
    """None when a browser is there at the end, else what to do."""
    if find_chrome() or (can_apt() and apt_install("chromium", *FONTS) and find_chrome()):
        return None
    done = subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)
    if done.returncode == 0:
        return None
    return f"no Chrome or Chromium: install one (any of {', '.join(CHROME_NAMES)} on PATH), or set SPECDEC_CHROME"


def node_version() -> int:
    """Node's major version, 0 when there is none."""
    path = shutil.which("node")
    if path is None or shutil.which("npm") is None:
        return 0
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    major = text.strip().lstrip("v").split(".")[0]
    return int(major) if major.isdecimal() else 0


def node() -> str | None:
    """None when Node and npm are there at the end, else what to do."""
    if node_version() >= MIN_NODE or (
        can_apt() and apt_install("nodejs", "npm") and node_version() >= MIN_NODE
    ):
        return None
    return f"Node {MIN_NODE} or later with npm is needed to unpack the pinned browser packages: install it"


def vulkan() -> str | None:
    """None when a Vulkan driver file is there at the end, else what to do."""
    places = (Path("/usr/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d"))

    def found() -> bool:
        return any(list(place.glob("*lvp*.json")) for place in places)

    if found() or (can_apt() and apt_install("mesa-vulkan-drivers", "libvulkan1") and found()):
        return None
    return "the kernel tests need the lavapipe Vulkan driver: install mesa-vulkan-drivers"


NEEDS = {"browser": browser, "node": node, "vulkan": vulkan}


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, or 2 with a message."""
    names = sys.argv[1:] if argv is None else argv
    if len(names) != 1 or names[0] not in NEEDS:
        print(f"usage: python -m specdec_tools.machine {'|'.join(NEEDS)}", file=sys.stderr)
        return 2
    problem = NEEDS[names[0]]()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
