"""`read_kubeconfig` finds and merges the files, chooses a context, and checks the context's cluster and user.

As with kubectl, KUBECONFIG may name several files, some of which may be missing or empty. If two entries have the same
name, the first one is used. The current context is taken from the first file that names one. Only the fields that the
official client's loader reads are checked; others are ignored.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from trainmaster_operator.kubeconfig.errors import KubeconfigError, one_of, require_address, shown
from trainmaster_operator.kubeconfig.plugin import Credentials, Plugin
from trainmaster_operator.wire.values import mappings

_TEXTS = ("server", "certificate-authority", "certificate-authority-data", "proxy-url", "tls-server-name")
_USER_TEXTS = (
    *("client-certificate", "client-certificate-data", "client-key", "client-key-data"),
    *("token", "tokenFile", "username", "password"),
)
_PROXIES = ("http", "https", "socks5", "socks5h")
# The only provider that Kubernetes still supports; gcp and azure were removed in 1.26 and are plugins now.
_PROVIDER = "oidc"


@dataclass(frozen=True)
class Kubeconfig:
    """Holds one context of the kubeconfig files, with its cluster and user, after all checks."""

    # The paths of the files, for messages and for the official client's loader.
    path: str
    context: str
    namespace: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    plugin: Plugin | None
    # Whether the user logs in by an auth-provider, whose tokens the official client's loader renews in the file.
    has_provider: bool

    @property
    def extensions(self) -> dict[str, Any]:
        """Returns other programs' unchecked data (the cluster's `extensions`), by name."""
        return {str(entry.get("name")): entry.get("extension") for entry in mappings(self.cluster.get("extensions"))}

    def document(self, credentials: Credentials | None = None) -> dict[str, Any]:
        """Returns a kubeconfig with only this context. `credentials` replace the plugin that returned them."""
        user = {key: value for key, value in self.user.items() if key != "exec"}
        if credentials is not None and credentials.token:
            user = {**user, "token": credentials.token}
        if credentials is not None and credentials.certificate:
            pair = (credentials.certificate, credentials.key)
            certificate, key = (base64.b64encode(text.encode()).decode() for text in pair)
            user = {**user, "client-certificate-data": certificate, "client-key-data": key}
        return {
            "current-context": "chosen",
            "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
            "clusters": [{"name": "chosen", "cluster": dict(self.cluster)}],
            "users": [{"name": "chosen", "user": user}],
        }

    def without_token(self, error: Exception) -> KubeconfigError:
        """Returns the error for a failed login, if the official client's loader got no token from the auth-provider."""
        why = f"{type(error).__name__}: {error}"
        return KubeconfigError(f"kubeconfig {self.path}: the user's auth-provider gave no token ({why}); log in again")


def read_kubeconfig(
    given: str | None, context: str | None, *, cluster: str | None = None, user: str | None = None
) -> Kubeconfig | None:
    """Returns the named or the current context, from the given files or from KUBECONFIG. Raises KubeconfigError.

    `cluster` and `user` override those of the context. Returns None if there is no kubeconfig.
    """
    merged = merged_files(given)
    named = {"--context": context, "--cluster": cluster, "--user": user}
    for option, value in named.items():
        if merged is None and value:
            raise KubeconfigError(
                f"{option}: {shown(value)} can't be looked up without a kubeconfig; give --kubeconfig"
            )
    if merged is None:
        return None
    if merged.empty:
        if not given and not any(named.values()) and "KUBERNETES_SERVICE_HOST" in os.environ:
            # As in kubectl, inside a pod an empty file is treated like a missing one.
            return None
        raise KubeconfigError(f"kubeconfig {merged.source}: is empty; {HINT}")
    name, chosen = _context(merged, context)
    for field, wanted, known in (("cluster", cluster, merged.clusters), ("user", user, merged.users)):
        if wanted is not None:
            _entry(f"kubeconfig {merged.source}: --{field}", wanted, known, f"its {field}s")
            chosen = replace(chosen, fields={**chosen.fields, field: wanted})
    server = _cluster(merged, chosen, name)
    person = _user(merged, chosen, name)
    plugin, section = None, person.fields.get("exec")
    if section is not None:
        if not isinstance(section, dict):
            raise KubeconfigError(f"{person.place}.exec: is no mapping; give command and apiVersion")
        plugin = Plugin.of(f"{person.place}.exec", section, folder_of(person.file), server.fields)
    namespace = chosen.fields.get("namespace") or "default"
    if not isinstance(namespace, str):
        raise KubeconfigError(f"{chosen.place}.namespace: is no text; give a name")
    return Kubeconfig(
        merged.source, name, namespace, server.fields, person.fields, plugin, "auth-provider" in person.fields
    )


def _context(merged: Merged, wanted: str | None) -> tuple[str, Entry]:
    source, known = merged.source, one_of(list(merged.contexts))
    name = wanted or merged.current_context
    if not name:
        raise KubeconfigError(
            f"kubeconfig {source}: current-context: is missing; give --context, or kubectl config use-context NAME "
            f"(contexts: {known})"
        )
    place = f"kubeconfig {source}: {'--context' if wanted else 'current-context'}"
    return name, _entry(place, name, merged.contexts, "its contexts")


def _entry(place: str, name: object, known: Mapping[str, Entry], what: str) -> Entry:
    if not isinstance(name, str) or name not in known:
        raise KubeconfigError(f"{place}: {shown(name)} is not among {what}: {one_of(list(known))}")
    return known[name]


def _cluster(merged: Merged, context: Entry, name: str) -> Entry:
    found = _named(merged, context, "cluster", merged.clusters)
    if found is None:
        raise KubeconfigError(f"{context.place}.cluster: is missing; name a cluster for context {shown(name)}")
    place = found.place
    _require_texts(found, _TEXTS)
    require_address(f"{place}.server", found.fields.get("server"), ("http", "https"), "https://HOST:PORT")
    if found.fields.get("proxy-url"):
        require_address(f"{place}.proxy-url", found.fields["proxy-url"], _PROXIES, "http://HOST:PORT")
    if not isinstance(found.fields.get("insecure-skip-tls-verify") or False, bool):
        raise KubeconfigError(f"{place}.insecure-skip-tls-verify: is neither true nor false")
    _require_data(found, "certificate-authority")
    return _without_empty(found)


def _user(merged: Merged, context: Entry, name: str) -> Entry:
    found = _named(merged, context, "user", merged.users)
    if found is None:
        # Without a user, requests are anonymous, which some test clusters allow.
        return replace(context, fields={})
    place = found.place
    _require_texts(found, _USER_TEXTS)
    for field in ("client-certificate", "client-key"):
        _require_data(found, field)
    if _given(found, "client-certificate") != _given(found, "client-key"):
        raise KubeconfigError(f"{place}: client-certificate and client-key belong together; give both")
    token_file, fields = found.fields.get("tokenFile"), dict(found.fields)
    if token_file and not fields.get("token"):
        # Read the file here, because the loader would keep a final line break, which no header may contain.
        fields["token"] = _require_file(f"{place}.tokenFile", token_file)
    for field in ("token", "username", "password"):
        fields[field] = (fields.get(field) or "").strip()
        if not (fields[field].isascii() and fields[field].isprintable()):
            raise KubeconfigError(f"{place}.{field}: holds characters that no header can have; give it as it was made")
    provider = found.fields.get("auth-provider")
    if provider is not None:
        kind = provider.get("name") if isinstance(provider, dict) else None
        if kind != _PROVIDER:
            raise KubeconfigError(
                f"{place}.auth-provider: {shown(kind)} is known no more (Kubernetes 1.26); use the exec plugin of your "
                "provider"
            )
    return _without_empty(replace(found, fields=fields))


def _named(merged: Merged, context: Entry, field: str, known: Mapping[str, Entry]) -> Entry | None:
    name = context.fields.get(field)
    if name is None or name == "":
        return None
    return _entry(f"{context.place}.{field}", name, known, f"the {field}s")


def _require_texts(entry: Entry, names: tuple[str, ...]) -> None:
    for name in names:
        value = entry.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise KubeconfigError(f"{entry.place}.{name}: is no text; put it in quotes")
        if value is not None and not value.isprintable() and name not in ("token", "username", "password"):
            raise KubeconfigError(f"{entry.place}.{name}: holds control characters")


def _require_data(entry: Entry, name: str) -> None:
    """Checks the field `name` (a path) or `name`-data (base64). The latter takes precedence."""
    place = f"{entry.place}.{name}"
    data, path = entry.fields.get(f"{name}-data"), entry.fields.get(name)
    if data:
        try:
            base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise KubeconfigError(f"{place}-data: is not base64; copy it whole, or give {name} with a file") from error
    elif path:
        _require_file(place, path)


def _require_file(place: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise KubeconfigError(f"{place}: {path} can't be read ({error.strerror}); name a file that can") from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"{place}: {path} is no text; name a file in PEM, or one with a token") from error


def _given(entry: Entry, name: str) -> bool:
    return bool(entry.fields.get(name) or entry.fields.get(f"{name}-data"))


def _without_empty(entry: Entry) -> Entry:
    """Returns the entry without empty fields (`token: ""`), which the loader would treat as values."""
    return replace(entry, fields={key: value for key, value in entry.fields.items() if value not in (None, "")})


DEFAULT_PATH = "~/.kube/config"
# Limit on a file's bytes, in case a device or a log was named by mistake.
MAX_BYTES = 8 * 1024 * 1024
_LISTS = {"contexts": "context", "clusters": "cluster", "users": "user"}
# Fields that contain paths, which are relative to the entry's file.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
HINT = "name a kubeconfig with --kubeconfig or KUBECONFIG"


class _Loader(yaml.BaseLoader):
    """Reads text, booleans and null, and ignores all other tags."""


_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", _RESOLVERS["~"][0][1], ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _RESOLVERS["y"][0][1], list("yYnNtTfFoO"))
_Loader.add_constructor("tag:yaml.org,2002:null", lambda loader, node: None)
_Loader.add_constructor("tag:yaml.org,2002:bool", lambda loader, node: str(node.value).lower() in ("yes", "true", "on"))


@dataclass(frozen=True)
class Entry:
    """Holds a context, a cluster or a user, and the file that contains it."""

    file: str
    # The entry's name in messages, such as clusters[prod].cluster
    field: str
    fields: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Returns the file and the entry, for messages."""
        return f"kubeconfig {self.file}: {self.field}"


@dataclass
class Merged:
    """Holds the merged content of the kubeconfig files."""

    # The files as they were given, for messages.
    source: str
    current_context: str
    contexts: dict[str, Entry]
    clusters: dict[str, Entry]
    users: dict[str, Entry]

    @property
    def empty(self) -> bool:
        """Returns whether the files have no content at all, like a file created by `touch`."""
        return not (self.current_context or self.contexts or self.clusters or self.users)


def merged_files(given: str | None) -> Merged | None:
    """Returns the merged files; None if no file was named and the default doesn't exist. Raises KubeconfigError."""
    named = given or os.environ.get("KUBECONFIG", "")
    paths = [_expanded(path) for path in (named or DEFAULT_PATH).split(os.pathsep) if path]
    there = [path for path in paths if _exists(path)]
    if not there:
        if named:
            option = "--kubeconfig" if given else "KUBECONFIG"
            raise KubeconfigError(f"kubeconfig {named} ({option}): doesn't exist; {HINT}")
        return None
    merged = Merged(os.pathsep.join(there), "", {}, {}, {})
    for path in there:
        _merge(merged, path, _read(path))
    return merged


def _expanded(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        # There is no such user, so the ~ is an ordinary character.
        return path


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        # Access to the folder is denied, or the name is too long. Reading the file will report the problem.
        return True


def _read(path: str) -> Mapping[str, Any]:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise KubeconfigError(f"kubeconfig {path}: can't be read ({error.strerror}); {HINT}") from error
    except ValueError as error:
        raise KubeconfigError(f"kubeconfig {path!r}: is no name of a file; {HINT}") from error
    if len(raw) > MAX_BYTES:
        raise KubeconfigError(f"kubeconfig {path}: is larger than {MAX_BYTES >> 20} MiB, so it is none; {HINT}")
    try:
        document = yaml.load(raw.decode("utf-8-sig"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"kubeconfig {path}: byte {error.start} is not UTF-8; {HINT}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context
        raise KubeconfigError(f"kubeconfig {path}: not YAML{at}: {problem}; correct it, or {HINT}") from error
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise KubeconfigError(f"kubeconfig {path}: not YAML: {problem}; correct it, or {HINT}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeconfigError(f"kubeconfig {path}: holds no clusters, contexts and users; {HINT}")
    return document


def _merge(merged: Merged, path: str, document: Mapping[str, Any]) -> None:
    kind = document.get("kind")
    if kind not in (None, "", "Config"):
        raise KubeconfigError(f"kubeconfig {path}: kind: {shown(kind)} is no kubeconfig, whose kind is Config; {HINT}")
    current = document.get("current-context") or ""
    if not isinstance(current, str):
        raise KubeconfigError(f"kubeconfig {path}: current-context: is no text; give the name of a context")
    merged.current_context = merged.current_context or current
    for plural, singular in _LISTS.items():
        known: dict[str, Entry] = getattr(merged, plural)
        entries = document.get(plural)
        if entries is not None and not isinstance(entries, list):
            raise KubeconfigError(f"kubeconfig {path}: {plural}: is no list; give items with name and {singular}")
        for position, item in enumerate(entries or ()):
            name = item.get("name") if isinstance(item, dict) else None
            if not isinstance(name, str) or not name:
                place = f"{plural}[{position}]"
                raise KubeconfigError(f"kubeconfig {path}: {place}: has no name; give it name and {singular}")
            field = f"{plural}[{name}].{singular}"
            fields = item.get(singular)
            if fields is not None and not isinstance(fields, dict):
                raise KubeconfigError(f"kubeconfig {path}: {field}: is no mapping; see kubectl config view")
            known.setdefault(name, Entry(path, field, _absolute(fields or {}, path)))


def folder_of(file: str) -> Path:
    """Returns the base folder of the relative paths in a kubeconfig."""
    return Path(file).absolute().parent


def _absolute(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        key: str(folder_of(path) / value) if key in _PATHS and isinstance(value, str) and value else value
        for key, value in fields.items()
    }
