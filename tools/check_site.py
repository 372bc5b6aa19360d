"""Check the built site: two clicks to every page, a page for every public name, an answer for every question.

Run after Sphinx (`make docs` does): python tools/check_site.py docs/_build/html
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from sphinx.search.en import SearchEnglish
from sphinx.util.inventory import InventoryFile

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import public  # noqa: E402

# Pages that Sphinx adds, and that are reached by the search field.
APART = {"genindex.html", "search.html", "py-modindex.html"}
# Questions in a user's words, and the page that answers in full; the first search must find it.
QUESTIONS = {
    "how do I get an interval for a probability": "guide/classification",
    "which prior": "guide/priors",
    "my data have 40,000 categories": "guide/groups",
    "it says MAX_ITER": "limits",
    "can I trust this sd": "limits",
    "how do I save it": "guide/saving",
    "10 GB of CSV": "guide/files",
    "one row at a time": "guide/streams",
    "is this the mean or the mode": "how/ep",
    "how fast is it against X": "comparison",
}


class Links(HTMLParser):
    """Targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get("href") if tag == "a" else None
        if target and "://" not in target:
            self.found.add(unquote(urldefrag(target)[0]))


def too_far(site: Path) -> list[str]:
    """Pages that need more than two clicks from the front."""
    near, edge = {"index.html"}, {"index.html"}
    for _ in range(2):
        reached = set()
        for page in edge:
            links = Links()
            links.feed((site / page).read_text())
            places = ((site / page).parent / target for target in links.found if target)
            reached |= {str(p.resolve().relative_to(site)) for p in places if p.resolve().is_relative_to(site)}
        edge = {page for page in reached - near if page.endswith(".html")}
        near |= edge
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts}
    return sorted(pages - near - APART)


def without_page(site: Path) -> list[str]:
    """Public names that no page describes, under this or another path of the same object."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {name for kind in inventory.data.values() for name in kind}
    objects = [public.named(name) for name in described if name.startswith("cavity") and _exists(name)]
    return [name for name in public.names() if name not in described and not _among(public.named(name), objects)]


def _exists(path: str) -> bool:
    try:
        public.named(path)
    except (AttributeError, ImportError):
        return False
    return True


def _among(thing: object, others: list[object]) -> bool:
    return any(thing is other for other in others)


class Search:
    """The search of the site: pages that have all words of a query, as Sphinx's own script finds them."""

    def __init__(self, site: Path) -> None:
        text = (site / "searchindex.js").read_text()
        index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
        self.pages = index["docnames"]
        self.places = [index["terms"], index["titleterms"]]
        self.language = SearchEnglish({})

    def pages_for(self, query: str) -> set[str]:
        words = {word.lower() for word in re.findall(r"\w+", query)} - set(self.language.stopwords)
        found = set(range(len(self.pages)))
        for word in sorted(word for word in words if len(word) > 2 and not word.isdigit()):
            found &= self._having(self.language.stem(word))
        return {self.pages[k] for k in found}

    def _having(self, word: str) -> set[int]:
        having: set[int] = set()
        for terms in self.places:
            for term in (term for term in terms if word in term):
                having |= set(terms[term]) if isinstance(terms[term], list) else {terms[term]}
        return having


def unanswered(site: Path) -> list[str]:
    """Questions whose words do not lead to the page of short answers, or to the page that answers in full."""
    search = Search(site)
    missing = [f"{query!r}: {page} is not a page" for query, page in QUESTIONS.items() if page not in search.pages]
    return missing + [f"{query!r} does not find faq" for query in QUESTIONS if "faq" not in search.pages_for(query)]


def main(site: Path) -> int:
    problems = [f"more than two clicks from the front: {page}" for page in too_far(site)]
    problems += [f"no page in the reference: {name}" for name in without_page(site)]
    problems += [f"no answer: {question}" for question in unanswered(site)]
    fine = f"two clicks to every page, {len(list(public.names()))} names described, {len(QUESTIONS)} questions answered"
    print("\n".join(problems) or fine)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/_build/html").resolve()))
