"""A misspelled name is compared with the known ones, without case and without what separates its words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# How similar names are (difflib's ratio) of which one was probably meant, and of which one was surely meant.
SIMILAR = 0.7
VERY_SIMILAR = 0.85
# No name of ours is longer, and comparing takes time with the square of the length.
_LONGEST = 100
# A shorter beginning fits by chance.
_SHORTEST_BEGINNING = 3


def plain(name: str) -> str:
    """Returns the name as names are compared: maxRestarts, max_restarts and MAX-RESTARTS are one."""
    return re.sub(r"[-_. \xa0]", "", name).casefold()


def nearest(name: str, known: Iterable[str], least: float = SIMILAR) -> str | None:
    """Returns the known name that was probably meant: the same in another case, or at least as similar as `least`."""
    meant = {plain(each): each for each in known}
    near = difflib.get_close_matches(plain(name)[:_LONGEST], meant, n=1, cutoff=least)
    return meant[near[0]] if near else None


def only_longer(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that begins so, where only one does: OOM is OOMKilled."""
    given = plain(name)
    longer = [each for each in known if plain(each).startswith(given)]
    return longer[0] if len(longer) == 1 and len(given) >= _SHORTEST_BEGINNING else None
