"""What isn't YAML is said in a sentence: PyYAML's words for the mistakes that people make are replaced by a remedy."""

from __future__ import annotations

import re

import yaml

TEMPLATE = (
    "'{{' begins a template, which Helm renders; check what it renders (helm template . | trainmaster validate -)"
)

# What PyYAML says, and what is said instead; the groups are its own.
_MESSAGES = (
    (r"found character '\\t' that cannot start any token", "a tab can't indent; use spaces"),
    (r"found character '(.)' that cannot start any token", "a text can't begin with {0}; write it in quotes"),
    (
        r"mapping values are not allowed here",
        "a ':' follows where no field can begin; indent the line as its "
        "neighbours, or write a text that has ': ' in quotes",
    ),
    (r"could not find expected ':'", "a line without ':' stands between fields; write a field, or indent the text"),
    (r"expected <block end>, but found '([\]}])'", "{0} closes nothing; remove it, or write the text in quotes"),
    (r"expected <block end>, but found '<scalar>'", "a text follows one in quotes; put all of it in quotes"),
    (r"expected <block end>, but found '(.*)'", "this line is indented as none above it; indent it as its neighbours"),
    (r"(?:block )?sequence entries are not allowed here", "'-' can't begin an item here; put it on a line of its own"),
    (
        r"found undefined alias '(.*)'",
        "'*{0}' names no anchor (&{0}) above it; write a text that begins with * in quotes",
    ),
    (r"expected alphabetic or numeric character, but found .*", "a text can't begin with * or &; write it in quotes"),
    (r"found unknown escape character (.*)", "{0} is no escape in double quotes; write \\\\ for a backslash"),
    (r"expected a comment or a line break, but found .*", "a text behind '>' or '|' begins on the next line; move it"),
    (r"found unexpected end of stream", "the quotes that were opened are never closed; close them"),
    (r"expected the node content, but found '<stream end>'", "a bracket that was opened is never closed; close it"),
    (r"expected the node content, but found '(.*)'", "{0} stands where a value is expected; write a value"),
    (
        r"expected '<document start>', but found '<(?:scalar|block mapping start|block sequence start)>'|"
        r"but found another document",
        "kubectl reads nothing behind '...'; begin a document with '---'",
    ),
    (
        r"expected ',' or '([\]}])', but got '<stream end>'",
        "a bracket that was opened is never closed; close it with {0}",
    ),
    (
        r"expected ',' or '([\]}])', but got '(.*)'",
        "{1} can't follow there; close the brackets with {0}, or put a ',' between items",
    ),
)


# What was opened there is at fault, not the end of the file.
_NEVER_CLOSED = "never closed"


# Lines that make nothing but YAML's confusion, wherever it then shows.
_FOREIGN_LINES = (
    (
        re.compile(r"^ *(<{7}|={7}|>{7})( .*)?$", re.MULTILINE),
        "git's marks of a conflict are left in the file; resolve it",
    ),
    (re.compile(r"^```.*$", re.MULTILINE), "a fence of Markdown is no YAML; remove the line"),
)
_TOKENS = {
    "<scalar>": "a text",
    "<block mapping start>": "a field",
    "<block sequence start>": "an item",
    "<stream end>": "the end of the file",
    "<anchor>": "an anchor",
    ",": "','",
    ":": "':'",
    "-": "'-'",
}


def syntax_message(error: yaml.MarkedYAMLError, text: str) -> tuple[yaml.Mark | None, str]:
    """Returns what is wrong with a text that isn't YAML, and where."""
    for lines, message in _FOREIGN_LINES:
        found = lines.search(text)
        if found is not None:
            column = len(found[0]) - len(found[0].lstrip())
            return yaml.Mark("", found.start(), text.count("\n", 0, found.start()), column, None, 0), message
    problem = " ".join(str(error.problem or error.context).split())
    mark = error.problem_mark or error.context_mark
    if mark is not None and "{{" in "".join(text.split("\n")[mark.line : mark.line + 1]):
        return mark, TEMPLATE
    for pattern, message in _MESSAGES:
        found = re.fullmatch(pattern, problem)
        if found is not None:
            at = error.context_mark if _NEVER_CLOSED in message and error.context_mark is not None else mark
            return at, message.format(*(_TOKENS.get(each, each) for each in found.groups()))
    return mark, problem
