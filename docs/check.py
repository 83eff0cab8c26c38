"""Checks that every link in the documents leads somewhere: `make docs`."""

import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE)
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them: lower case, punctuation dropped, spaces to hyphens, repeats numbered."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = base = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        repeat = 0
        while name in names:
            repeat += 1
            name = f"{base}-{repeat}"
        names.add(name)
    return names


def broken(page: Path) -> list[str]:
    """The links of a page whose file or heading is not there; other sites are not asked."""
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    problems = []
    for groups in LINK.findall(text):
        link = next(filter(None, groups))
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        place, _, anchor = unquote(link).partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            problems.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            problems.append(f"{link}: there is no such heading")
    return problems


def main() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    problems = [f"{page.relative_to(ROOT)}: {problem}" for page in sorted(pages) for problem in broken(page)]
    print(*problems, f"{len(pages)} documents, {len(problems)} broken links", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
