"""`make bench-select`: where the time of POST /select goes when the pool and its embeddings come with the request.

Texts are passages of about 150 words out of the standard library's docstrings; the embeddings are synthetic, in one
float16 block. Everything but the scoring (parsing and decoding included, and the trip over loopback) is to stay under a
tenth of the request.
"""

import argparse
import base64
import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from boundarymorph.cli.demo import docstrings, service
from boundarymorph.selection.methods import METHODS
from load_tests import report
from tests.selection.pools import clustered


def passages(count: int, words: int) -> list[str]:
    """Passages of about this many words, each of consecutive docstrings."""
    vocabulary = itertools.cycle(word for document in docstrings() for word in document.content.split())
    return [" ".join(itertools.islice(vocabulary, words)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    parser.add_argument("--budget", type=int, default=50)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    os.environ["BOUNDARYMORPH_CACHE__ENABLED"] = "false"  # of the service: every repetition is to be scored
    texts = passages(arguments.pool, arguments.words)
    rows = report.Rows("select")
    with tempfile.TemporaryDirectory() as directory, service(Path(directory)) as client:
        for dimension, method, batch_size in itertools.product(
            arguments.dimensions, arguments.methods, arguments.batch_sizes
        ):
            pool, _ = clustered(arguments.pool, dimension, 1, np.float32)
            block = base64.b64encode(pool.embeddings.astype("<f2").tobytes()).decode()
            body = orjson.dumps(
                {
                    "query": "read and write compressed archives",
                    "query_embedding": pool.query.tolist(),
                    "pool": {
                        "documents": [{"text": text} for text in texts],
                        "embeddings": {"data": block, "shape": [arguments.pool, dimension]},
                    },
                    "budget": arguments.budget,
                    "k": 100,
                    "batch_size": batch_size,
                    "method": method,
                }
            )
            runs = []
            for _ in range(arguments.repeats):
                start = time.perf_counter()
                answer = client.post("/select", content=body, headers={"Content-Type": "application/json"})
                total = (time.perf_counter() - start) * 1e3
                answer.raise_for_status()
                runs.append((total, answer.json()["timings_ms"]))
            total, stages = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
            rows.append(
                {
                    "pool": arguments.pool,
                    "dimension": dimension,
                    "budget": arguments.budget,
                    "batch_size": batch_size,
                    "method": method,
                    "body_megabytes": len(body) / 1e6,
                    "total_ms": total,
                    **{f"{stage}_ms": stages[stage] for stage in ("receive", "parse", "retrieve", "select", "score")},
                    "other_share": 1 - stages["score"] / total,
                }
            )
    report.write(
        "select",
        rows,
        {
            f"other_share_d{row['dimension']}_{row['method']}_round{row['batch_size']}": row["other_share"]
            for row in rows
        },
    )


if __name__ == "__main__":
    report.run(main)
