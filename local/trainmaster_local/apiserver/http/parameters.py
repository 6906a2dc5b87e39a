"""Validates query parameters and turns them into the options of writes and watches."""

from __future__ import annotations

from aiohttp import web

from trainmaster_local.apiserver.api import Options
from trainmaster_local.apiserver.apimachinery import errors
from trainmaster_local.apiserver.apimachinery.errors import ApiError
from trainmaster_local.apiserver.resources import User

_VALIDATIONS = ("", "Ignore", "Warn", "Strict")


def number(query: dict[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not text.isdecimal():
        raise errors.bad_request(f'{name}: strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def is_true(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("1", "true")


def options_error(kind: str, *found: errors.FieldError) -> ApiError:
    return errors.invalid("meta.k8s.io", kind, "", found)


def write_options(request: web.BaseRequest, query: dict[str, str], user: User, *, patch: bool) -> Options:
    """Returns the options of a write, from the query and the User-Agent."""
    kind = "PatchOptions" if patch else "CreateOptions" if request.method == "POST" else "UpdateOptions"
    validation = query.get("fieldValidation", "")
    if validation not in _VALIDATIONS:
        error = errors.FieldError.not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))
        raise options_error(kind, error)
    dry_run = request.query.getall("dryRun", [])
    if any(value != "All" for value in dry_run):
        raise options_error(kind, errors.FieldError.not_supported("dryRun", dry_run, ("All",)))
    manager = query.get("fieldManager") or request.headers.get("User-Agent", "").partition("/")[0][:128]
    return Options(user, manager or "unknown", bool(dry_run), validation or "Warn")


def check_initial(query: dict[str, str], initial: bool | None, bookmarks: bool) -> None:
    """Checks the conditions of sendInitialEvents (`ValidateListOptions`)."""
    match = query.get("resourceVersionMatch", "")
    found = []
    if initial is not None and match != "NotOlderThan":
        found.append(
            errors.FieldError.forbidden(
                "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            )
        )
    elif initial is None and match:
        found.append(
            errors.FieldError.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if initial and not bookmarks:
        found.append(
            errors.FieldError.forbidden("allowWatchBookmarks", "sendInitialEvents requires setting allowWatchBookmarks")
        )
    if found:
        raise options_error("ListOptions", *found)
