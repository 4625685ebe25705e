"""Hold the texts of the examples, and start the embeddings server that they share."""

import os
from uuid import UUID

TEXTS = [
    "A violin has four strings, tuned in fifths, and is played with a bow.",
    "The trams of the harbour line run every ten minutes until midnight.",
    "Bread is baked at dawn, from flour, water, salt and yeast.",
    "A glacier carries stones for miles before it drops them.",
    "The bow of a ship parts the water in front of it.",
    "A cellist and two violinists played in the street.",
    "Rye flour takes up more water than wheat flour does.",
    "The tram stops at the concert hall and at the bakery.",
]
IDS = [str(UUID(int=number)) for number in range(1, len(TEXTS) + 1)]  # Qdrant wants UUIDs
METADATA = [{"number": number} for number in range(len(TEXTS))]

URL, MODEL = os.environ.get("EMBEDDINGS_URL", "http://127.0.0.1:8000/v1"), os.environ.get("EMBEDDINGS_MODEL", "model")
KEY = os.environ.get("EMBEDDINGS_KEY", "unused")
