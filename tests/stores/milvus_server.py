"""Become the Milvus server that the package `milvus` contains.

An environment with only that package runs it: `python -P milvus_server.py DIRECTORY PORT METRICS_PORT`.
"""

import os
import sys

import milvus

if __name__ == "__main__":
    directory, port, metrics = sys.argv[1:]
    server = milvus.MilvusServer()
    server.set_base_dir(directory)
    server.listen_port = int(port)
    server.config.resolve()
    milvus._initialize_data_files(server.config.base_data_dir)
    binary = server.get_milvus_executable_path()
    settings = {
        "DEPLOY_MODE": "STANDALONE",
        "METRICS_PORT": metrics,
        "MILVUS_RUN_DIR": os.path.join(directory, "run"),
        "LD_LIBRARY_PATH": os.path.dirname(binary),
    }
    os.chdir(directory)
    os.execve(binary, [binary, "run", "standalone"], os.environ | settings)
