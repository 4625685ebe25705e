"""List the selectors that are compared, in files with CONTESTANTS.

A new file is named below.
"""

from __future__ import annotations

from collections.abc import Sequence

from boundarymorph.errors import InvalidInput
from boundarymorph.selection.methods import DEFAULT
from boundarymorph_evaluation.methods import baselines, morph
from boundarymorph_evaluation.methods.method import Contestant, ScoringMethod

__all__ = ["CONTESTANTS", "GROUPS", "Contestant", "ScoringMethod", "chosen"]

CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for group in (baselines.CONTESTANTS, morph.CONTESTANTS, morph.LEXICAL)
    for contestant in group
}
GROUPS: dict[str, tuple[str, ...]] = {
    "baselines": ("mips", "bm25", "fusion", "ss", "rocchio", "feedback", "rgs", "gar", "quam", "bagel"),
    "hybrid": tuple(contestant.name for contestant in baselines.HYBRIDS),
    "product": (*morph.PRODUCT, morph.EXTEND.name),
    "lexical": tuple(contestant.name for contestant in morph.LEXICAL),
    "ablations": ("no-acquisition", "no-prior", "independent"),
    "kernels": ("boundarymorph-rbf", "boundarymorph-matern52", "bagel-rbf", "bagel-matern52"),
}


def find_contestants(names: Sequence[str]) -> list[Contestant]:
    """Return contestants by name or by group.

    NAME@n is a product method in rounds of n, and NAME@auto one in growing rounds.

    Raises:
        InvalidInput: For an unknown name.
    """
    found: dict[str, Contestant] = {}
    for name in (member for given in names for member in GROUPS.get(given, (given,))):
        base, _, batch = name.partition("@")
        if batch:
            if base not in morph.PRODUCT or (batch != "auto" and (not batch.isdecimal() or int(batch) < 1)):
                raise InvalidInput(
                    f"{name!r}: rounds are NAME@n or NAME@auto with a product method, such as {DEFAULT}@5"
                )
            found[name] = morph.in_rounds(CONTESTANTS[base], None if batch == "auto" else int(batch))
        elif name in CONTESTANTS:
            found[name] = CONTESTANTS[name]
        else:
            raise InvalidInput(f"no method is called {name!r}; there are {', '.join([*CONTESTANTS, *GROUPS])}")
    return list(found.values())
