"""Files are read as kubectl 1.32 reads them: each value here is the one that it sent to an API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.cli import documents
from trainmaster.cli.documents import Document, UnreadableFile, files_of, read_documents


def read(folder: Path, text: str | bytes) -> list[Document]:
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_documents(str(path))


def mistakes(folder: Path, text: str | bytes) -> list[str]:
    return [
        f"{each.line}:{each.column}: {each.message}" for document in read(folder, text) for each in document.mistakes
    ]


SCALARS: dict[str, Any] = {
    "yes": True,
    "On": True,
    "off": False,
    "NO": False,
    "y": True,
    "nope": "nope",
    "010": 8,
    "0o10": 8,
    "08": 8,
    "0x1F": 31,
    "-0x1F": -31,
    "0b11": 3,
    "1_000": 1000,
    "1_000.5": 1000.5,
    "_1": "_1",
    "+12": 12,
    "1:30": "1:30",
    "190:20:30": "190:20:30",
    "1e3": 1000,
    "1e-4": 0.0001,
    "1e+06": 1_000_000,
    "3.1536e+07": 31_536_000,
    "1.0": 1,
    "1.": 1,
    ".5": 0.5,
    "+.5": 0.5,
    "1e400": "1e400",
    "2026-01-01": "2026-01-01",
    "2026-01-01T00:00:00Z": "2026-01-01T00:00:00Z",
    "~": None,
    "Null": None,
    "nUll": "nUll",
    "": None,
    "'010'": "010",
    '"yes"': "yes",
    "!!str 3": "3",
    '!!int "3"': 3,
    "!mine 3": "3",
    "!!binary aGVsbG8=": "hello",
    "18446744073709551616": 1.8446744073709552e19,
    "1.0.0": "1.0.0",
    "3\t# three": 3,
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items(), ids=SCALARS.keys())
def test_a_scalar_means_what_it_means_to_kubectl(tmp_path: Path, text: str, value: Any) -> None:
    (document,) = read(tmp_path, f"a: {text}\nb: 1\n")
    assert document.mistakes == ()
    assert (document.value["a"], type(document.value["a"])) == (value, type(value))


def test_keys_are_texts(tmp_path: Path) -> None:
    (document,) = read(tmp_path, "1: a\n1.5: b\n0x10: c\ntrue: d\n1e3: e\n")
    assert (document.value, document.mistakes) == ({"1": "a", "1.5": "b", "16": "c", "true": "d", "1000": "e"}, ())


MERGES = {
    "one": ("base: &b {k: 1, l: 2}\nd: {<<: *b, k: 3}\n", {"k": 3, "l": 2}),
    "the first of several": ("base: &b {k: 1}\nc: &c {k: 9, m: 1}\nd: {<<: [*b, *c]}\n", {"k": 1, "m": 1}),
    "twice": ("base: &b {k: 1}\nc: &c {m: 1}\nd:\n  <<: *b\n  <<: *c\n", {"k": 1, "m": 1}),
    "behind a field, which it replaces": ("base: &b {k: 1}\nd: {k: 3, <<: *b}\n", {"k": 1}),
    "what merges itself": ("a: &a {k: 1}\nb: &b {<<: *a, l: 2}\nd: {<<: *b}\n", {"k": 1, "l": 2}),
    "in quotes it is a key": ('d: {"<<": 3}\n', {"<<": 3}),
}


@pytest.mark.parametrize(("text", "value"), MERGES.values(), ids=MERGES.keys())
def test_merge_keys_merge(tmp_path: Path, text: str, value: Any) -> None:
    (document,) = read(tmp_path, text)
    assert (document.value["d"], document.mistakes) == (value, ())


def test_a_merged_field_has_its_place(tmp_path: Path) -> None:
    (document,) = read(tmp_path, "base: &b\n  k: 1\nd:\n  <<: *b\n  l: {example.com/x: 2}\n")
    assert [document.place(field) for field in ("d.k", "d.l.example.com/x", "d.z.y", "z")] == [
        (2, 3),
        (5, 7),
        (3, 1),
        (1, 1),
    ]


def test_an_anchor_may_be_given_anew(tmp_path: Path) -> None:
    (document,) = read(tmp_path, "a: &x 1\nb: &x 2\nc: *x\n")
    assert (document.value["c"], document.mistakes) == (2, ())


ENCODED = {
    "UTF-8 with its mark": "\ufeffa: é\n".encode(),
    "UTF-16 of a little machine": b"\xff\xfe" + "a: é\n".encode("utf-16-le"),
    "UTF-16 of a big machine": b"\xfe\xff" + "a: é\n".encode("utf-16-be"),
    "lines as Windows ends them": "a: é\r\n".encode(),
}


@pytest.mark.parametrize("data", ENCODED.values(), ids=ENCODED.keys())
def test_an_encoding_that_kubectl_reads_is_read(tmp_path: Path, data: bytes) -> None:
    (document,) = read(tmp_path, data)
    assert (document.value, document.mistakes) == ({"a": "é"}, ())


def test_documents_are_cut_as_kubectl_cuts_them(tmp_path: Path) -> None:
    text = "---\n---\na: 1\n--- # two\n# nothing\n---\nb: |\n  ---\n  x\n---\r\nc: 3\r\n"
    assert [document.value for document in read(tmp_path, text)] == [{"a": 1}, {"b": "---\nx\n"}, {"c": 3}]


def test_what_is_wrong_with_one_document_leaves_the_others(tmp_path: Path) -> None:
    documents = read(tmp_path, "a: 1\n---\nb: [1\n---\nc: {x: y: z}\n---\nd: 4\n")
    assert [document.value for document in documents] == [{"a": 1}, None, None, {"d": 4}]
    assert [document.mistakes[0].line for document in documents if document.mistakes] == [3, 5]


def test_json_is_read_with_its_places(tmp_path: Path) -> None:
    (document,) = read(tmp_path, '{\n\t"a": {"b": "\\ud83d\\ude00\\/"},\n\t"n": 1.0\n}\n')
    assert (document.value, document.mistakes) == ({"a": {"b": "😀/"}, "n": 1}, ())
    assert document.place("a.b") == (2, 8)


def test_json_documents_may_follow_each_other(tmp_path: Path) -> None:
    documents = read(tmp_path, '{"a": 1}{"b": 2}\n{"c": 3}')
    assert [document.value for document in documents] == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert [document.place(next(iter(document.value))) for document in documents] == [(1, 2), (1, 10), (2, 2)]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{chr(ord(name) - 1)}'] * 10)}]\n" for name in "bcdefghi"
)
WRONG = {
    "a key twice": ("a: 1\nb: 2\na: 3\n", "3:1: a: is given twice; keep one"),
    "a key twice, as a number and as text": ('a: {1: 2, "1": 3}\n', "1:11: a.1: is given twice; keep one"),
    "a key twice in JSON": ('{"a": 1, "a": 2}', "1:10: a: is given twice; keep one"),
    "a key that is read as true": ("a:\n  y: 1\n", "2:3: a: kubectl reads the key y as true; write it in quotes"),
    "no key": ("~: 1\n", "1:1: null can't be a key; write it in quotes"),
    "a list as key": ("a:\n  [b]: 1\n", "2:3: a: a list or a mapping can't be a key; write a text"),
    "infinity": (
        "a: .inf\n",
        "1:4: a: .inf is not a finite number; use one",
    ),
    "half of a character": (
        'a: ["\\ud83d"]\n',
        "1:5: a[0]: has half of a character, which is not valid Unicode; write the whole character",
    ),
    "two halves, which only JSON joins": (
        'a: "\\ud83d\\ude00"\n',
        "1:4: a: has half of a character, which is not valid Unicode; write the whole character",
    ),
    "a merge of no mapping": (
        "a: {<<: 3}\n",
        "1:9: a: << merges mappings that stand before it; give the alias of one, such as *base",
    ),
    "a merge of itself": (
        "a: &a {<<: *a}\n",
        "1:4: a: << merges mappings that stand before it; give the alias of one, such as *base",
    ),
    "an alias in itself": ("a: &a [*a]\n", "1:4: a[0]: its alias contains itself; write out what is needed"),
    "aliases without end": (
        BOMB,
        "1:1: its aliases (*name) make more than 1000000 values of it; write out what is needed",
    ),
    "a tag of another type": (
        "a: !!int x\n",
        "1:4: a: 'x' isn't of the type !!int; remove the tag, or give what it says",
    ),
    "no base64": ("a: !!binary x\n", "1:4: a: 'x' isn't base64 of a text; remove the tag, or give what it says"),
    "a template": (
        "a: {{ .Values.x }}\n",
        "1:5: a: '{{' begins a template, which Helm renders; check what it renders (helm template . | "
        "trainmaster validate -)",
    ),
    "a template's condition": (
        "{{- if .Values.x }}\na: 1\n{{- end }}\n",
        "1:3: not YAML: '{{' begins a template, which Helm renders; check what it renders (helm template . | "
        "trainmaster validate -)",
    ),
    "a tab": ("a:\n\tb: 1\n", "2:1: not YAML: a tab can't indent; use spaces"),
    "an at sign": ("a: @b\n", "1:4: not YAML: a text can't begin with @; write it in quotes"),
    "a star": ("a: *.txt\n", "1:5: not YAML: a text can't begin with * or &; write it in quotes"),
    "an alias of nothing": (
        "a: *b\n",
        "1:4: not YAML: '*b' names no anchor (&b) above it; write a text that begins with * in quotes",
    ),
    "a colon in a text": (
        "a: b: c\n",
        "1:5: not YAML: a ':' follows where no field can begin; indent the line as its neighbours, or write a text "
        "that has ': ' in quotes",
    ),
    "another indentation": (
        "a:\n    b: 1\n  c: 2\n",
        "3:3: not YAML: this line is indented as none above it; indent it as its neighbours",
    ),
    "a line without a colon": (
        "a: 1\nb\nc: 3\n",
        "3:1: not YAML: a line without ':' stands between fields; write a field, or indent the text",
    ),
    "open quotes": ('a: "b\nc: 1\n', "1:4: not YAML: the quotes that were opened are never closed; close them"),
    "an open bracket": ("a: [1\n", "1:4: not YAML: a bracket that was opened is never closed; close it with ]"),
    "an open bracket at the end": (
        "a: [",
        "1:5: not YAML: a bracket that was opened is never closed; close it",
    ),
    "a comma too many": ("a: [1,,2]\n", "1:7: not YAML: ',' stands where a value is expected; write a value"),
    "JSON without a comma": (
        '{"a": 1 "b": 2}\n',
        "1:12: not YAML: ':' can't follow there; close the brackets with }, or put a ',' between items",
    ),
    "a bracket too many": (
        "a: [1]]\nb: 2\n",
        "1:7: not YAML: ] closes nothing; remove it, or write the text in quotes",
    ),
    "a text behind quotes": ('a: "b":1\n', "1:7: not YAML: a text follows one in quotes; put all of it in quotes"),
    "quoted mail": (
        "> a: 1\n> b: 2\n",
        "1:3: not YAML: a text behind '>' or '|' begins on the next line; move it",
    ),
    "git's marks": (
        "a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> mine\n",
        "2:1: not YAML: git's marks of a conflict are left in the file; resolve it",
    ),
    "a fence of Markdown": ("```yaml\na: 1\n```\n", "1:1: not YAML: a fence of Markdown is no YAML; remove the line"),
    "an escape of Windows": (
        'a: "C:\\data"\n',
        "1:8: not YAML: 'd' is no escape in double quotes; write \\\\ for a backslash",
    ),
    "a control character": ("a: \x01\n", "1:4: not YAML: the character '\\x01' can't stand there; remove it"),
    "what stands behind the dots": (
        "a: 1\n...\nb: 2\n",
        "3:1: not YAML: kubectl reads nothing behind '...'; begin a document with '---'",
    ),
    "what stands behind the hyphens": (
        "--- {a: 1}\n",
        "1:1: not YAML: kubectl reads nothing behind '---'; begin the document on the next line",
    ),
    "a directive": ("%YAML 1.2\n---\na: 1\n", "1:1: not YAML: kubectl reads no directives (%); remove the line"),
    "nesting without end": (
        f"a: {'[' * 5_000}",
        "1:1: has too many lists and mappings in each other; use at most 64",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    assert mistakes(tmp_path, text) == [sentence]


def test_a_byte_that_isnt_utf_8_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"file\.yaml:2:4: this byte is not UTF-8; save the file as UTF-8$"):
        read(tmp_path, b"a: 1\nb: \xe9\n")


@pytest.mark.parametrize("text", ["workers: {digits}", '{{"workers": {digits}}}', "workers: -{digits}"])
def test_a_number_of_any_length_is_read(tmp_path: Path, text: str) -> None:
    (document,) = read(tmp_path, text.format(digits="1" * 5_000).encode())
    assert isinstance(document.value["workers"], str) and not document.mistakes


def test_every_document_of_many_has_its_place(tmp_path: Path) -> None:
    found = read(tmp_path, b"---\n".join([b"a: 1\nb: 2\n"] * 500))
    assert [document.place("b") for document in found] == [(3 * number + 2, 1) for number in range(500)]
    found = read(tmp_path, b'{"a":1} {"b":\n2}' * 250)
    assert [document.place("a")[0] for document in found[::2]] == list(range(1, 251))
    assert [document.place("b") for document in found[1::2]] == [
        (number, 10 if number == 1 else 12) for number in range(1, 251)
    ]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"---\n".join([b"a: 1\n"] * 101), "has more than 100 documents; split it"),
        (b'{"a":1}' * 101, "has more than 100 documents; split it"),
        (b"#" * (16 * 1024 * 1024 + 1), "has more than 16 MiB; split it"),
    ],
    ids=["documents", "objects", "bytes"],
)
def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, sentence: str
) -> None:
    assert documents.MAX_DOCUMENTS == 10_000
    monkeypatch.setattr(documents, "MAX_DOCUMENTS", 100)
    with pytest.raises(UnreadableFile, match=sentence):
        read(tmp_path, data)


def test_a_folder_stands_for_the_files_that_kubectl_takes(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.json", "notes.md", "values.yaml.orig"):
        (tmp_path / name).touch()
    (tmp_path / "below.yaml").mkdir()
    assert [Path(file).name for file in files_of(str(tmp_path))] == ["a.yml", "b.yaml", "c.json"]


@pytest.mark.parametrize("name", ["", "folder"])
def test_what_names_no_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnreadableFile, match="; name "):
        files_of(name and str(tmp_path / name))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.", max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text("abc", max_size=3), JSON_VALUES, min_size=1), st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_json(tmp_path_factory: pytest.TempPathFactory, value: Any, indent: int | str | None) -> None:
    (document,) = read(tmp_path_factory.getbasetemp(), json.dumps(value, indent=indent))
    assert (document.value, document.mistakes) == (value, ())


@given(st.text(st.characters(), max_size=60) | st.text("{}[]:-*&!|>'\"#%@`\t\n ?,ab0<.", max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    for document in read(tmp_path_factory.getbasetemp(), text.encode("utf-8", "replace")):
        assert document.value is not None or document.mistakes
        assert all("\n" not in each.message for each in document.mistakes)
