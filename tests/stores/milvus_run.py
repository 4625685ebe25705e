"""Test indexes in Milvus with a server: `make test-stores STORE=milvus`.

    python -m tests.stores.milvus_run INTERPRETER [PYTEST OPTIONS]

INTERPRETER is that of an environment with the package `milvus`, which contains the server.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.ports import free_port
from tests.stores import milvus

FILES = ("test_milvus.py", "test_collections.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("interpreter")
    arguments, options = parser.parse_known_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        milvus.server(arguments.interpreter, Path(directory), port),
    ):
        files = [str(Path(__file__).with_name(file)) for file in FILES]
        command = [sys.executable, "-m", "pytest", "-n0", "--timeout", "0", *files, *options]
        environment = os.environ | {"MILVUS_URL": f"milvus://127.0.0.1:{port}"}
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
