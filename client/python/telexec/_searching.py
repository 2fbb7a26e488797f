"""How files are searched, for both kinds of API."""

from __future__ import annotations

from typing import TypedDict


class Searching(TypedDict, total=False):
    """How files are searched.

    user: who reads them
    case_insensitive: in the glob and the regex
    include_hidden: also names that begin with a dot, and what is in such directories
    include_ignored: also what .gitignore and .ignore say is to be ignored, and .git
    follow_links: symbolic links stand for what they lead to
    max_matches: the most files or matching lines; 10,000 unless given
    """

    user: str
    case_insensitive: bool
    include_hidden: bool
    include_ignored: bool
    follow_links: bool
    max_matches: int
