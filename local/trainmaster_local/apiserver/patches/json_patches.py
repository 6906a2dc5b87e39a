"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import jsonpointer

from trainmaster_local.apiserver.apimachinery.errors import ApiError, bad_request
from trainmaster_local.apiserver.resources import Object


def merge_patch(target: Any, patch: Any) -> Any:
    """Returns the patched value. Parts that the patch doesn't touch are shared with `target`."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def json_patch(target: Object, operations: Any) -> Object:
    """Returns the patched object.

    Raises ApiError 422 for a failed test or a missing path, 400 for an invalid JSON patch.
    """
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    try:
        patched: Object = jsonpatch.JsonPatch(operations).apply(copy.deepcopy(target), in_place=True)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise ApiError(
            422, "Invalid", "the server rejected our request due to an error in our request", details={}
        ) from error
    return patched
