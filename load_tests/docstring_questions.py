"""The demo's collection as a BEIR folder: the standard library's docstrings, and questions with many answers.

python -m load_tests.docstring_questions FOLDER
"""

import argparse
import json
from pathlib import Path

from boundarymorph.cli.demo import docstrings

QUESTIONS = """
work with dates, times and time zones
read and write compressed archives
run other programs and talk to them
send and receive data over sockets
parse command line arguments
numbers drawn at random from a distribution
wait for several tasks at once
encrypt, hash and compare secrets
the colour of a pixel in an image
parse and build XML documents
measure how long code takes to run
raise when a file does not exist
""".strip().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": document.id, "title": document.title, "text": document.text} for document in docstrings()]
    queries = [{"_id": str(number), "text": text} for number, text in enumerate(QUESTIONS)]
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = (json.dumps(record) for record in records)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(corpus):,} docstrings and {len(queries)} questions in {folder}")


if __name__ == "__main__":
    main()
