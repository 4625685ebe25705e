"""A collection that nothing was chosen on, made of apt's package descriptions: python -m load_tests.held_out FOLDER.

Writes FOLDER/corpus.jsonl and FOLDER/queries.jsonl in the format of BEIR: Debian's packages by their descriptions,
without libraries and what is for developers in one language, and questions that have many answers. The questions were
written before any of them was tried. Needs a Debian system whose lists hold English descriptions:
`apt-get -o Acquire::Languages=en update`.
"""

import argparse
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

LEFT_OUT = """
cli-mono debug doc fonts gnu-r golang haskell introspection java javascript kernel libdevel libs lisp localization
metapackages ocaml oldlibs perl php python ruby rust tasks translations
"""
QUESTIONS = """
edit audio recordings; play music from the command line; graphical editor for photos and bitmap images;
convert video files between formats; monitor the performance and load of a server; back up files to a remote machine;
encrypt files or disks; scan a network for open ports and vulnerabilities; manage passwords securely;
write and typeset scientific documents; plot scientific data; align DNA or protein sequences;
simulate molecules and chemistry; games for small children; puzzle games with blocks or tiles;
first person shooter games; roguelike dungeon games; chess engines and interfaces; learn to type or learn a language;
flashcards and memory training; astronomy and planetarium software; geographic maps and GIS tools;
receive GPS tracks and waypoints; amateur radio and digital modes; control a software defined radio;
read electronic books and comics; manage a collection of photos; recover deleted files from a damaged disk;
partition and format disks; find duplicate files; compare and merge text files; terminal emulators;
window managers that tile windows; change the desktop wallpaper or theme;
send and read electronic mail in a terminal; filter spam from mail; chat and instant messaging clients;
download files with bittorrent; web servers that are small and fast; web browsers without graphics;
administer databases with a graphical tool; schedule tasks and reminders; personal finance and accounting;
track time spent on projects; read and write CDs and DVDs; scan paper documents and recognise text;
print labels, barcodes and business cards; draw diagrams and flow charts;
design electronic circuits and printed circuit boards; three dimensional modelling and printing;
debug memory errors in C programs; build packages and manage releases; version control systems and tools for git;
static analysis of source code; emulators of old home computers and consoles; run virtual machines;
manage containers in the cloud; synthesise speech and read text aloud; accessibility tools for blind users;
synthesizers and MIDI sequencers
"""
NAMES_AT_A_TIME = 5_000


def _apt(*arguments: str) -> str:
    command = ["apt-cache", "-o", "Acquire::Languages=en", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def packages() -> Iterator[dict[str, str]]:
    """Yield the fields of every package that apt knows, by name."""
    names = sorted(_apt("pkgnames").split())
    for start in range(0, len(names), NAMES_AT_A_TIME):
        for stanza in _apt("show", "--no-all-versions", *names[start : start + NAMES_AT_A_TIME]).split("\n\n"):
            fields: dict[str, str] = {}
            name = ""
            for line in stanza.splitlines():
                if line.startswith(" "):
                    fields[name] += "\n" + line[1:]
                else:
                    name, _, value = line.partition(": ")
                    fields[name] = value
            yield fields


def documents(found: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return texts by package: one of those that share a description."""
    texts: dict[str, str] = {}
    for fields in found:
        section = fields.get("Section", "libs").rpartition("/")[2]
        if "Description-en" in fields and section not in LEFT_OUT.split():
            title, _, body = fields["Description-en"].partition("\n")
            texts.setdefault(body, f"{fields['Package']}: {title}. {' '.join(body.split())}")
    return {text.partition(":")[0]: text for text in texts.values()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    texts = documents(packages())
    if not texts:
        raise SystemExit("apt knows no English descriptions; run `apt-get -o Acquire::Languages=en update`")
    folder.mkdir(parents=True, exist_ok=True)
    questions = {str(number): question for number, question in enumerate(" ".join(QUESTIONS.split()).split("; "))}
    for name, records in (("corpus", texts), ("queries", questions)):
        lines = (json.dumps({"_id": id, "text": text}) for id, text in records.items())
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(texts):,} packages and {len(questions)} questions in {folder}")


if __name__ == "__main__":
    main()
