"""Runs node.mjs: node.py BIN_DIRECTORY DIRECTORY, where "npm install e2b@2.51.0" was called in the latter."""

import pathlib
import subprocess
import sys

from e2b_site import Site

if __name__ == "__main__":
    script = pathlib.Path(__file__).with_name("node.mjs")
    with Site(sys.argv[1]):
        subprocess.run(["node", script, sys.argv[2]], check=True, timeout=120)
