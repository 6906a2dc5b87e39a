"""If there is an agent that assigns attempts, `init_process_group` creates a group that can continue.

Scripts call torch's own functions, so `install` wraps `init_process_group`, `new_group` and collectives of objects. A
rank may be forked after that, so the wrappers check for an agent only when they are called.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d

if TYPE_CHECKING:
    from trainloop.continuing.forming import Continuing
    from trainloop.continuing.group import Group

#: The path that, followed by the rank, names the rank's FIFO (`orders`).
FILE_VARIABLE = "TRAINMASTER_GROUP_FILE"
#: Set for a rank that joins others that are already training.
JOINS_VARIABLE = "TRAINMASTER_JOINS"
#: torch's name for groups that can continue.
BACKEND = "trainmaster"

_torch: Any = distributed_c10d
#: Collectives of objects in which a single rank sends all values.
_SENDING = ("broadcast_object_list", "scatter_object_list")
_current: Continuing | None = None
_wrapped = False


def continuing() -> Continuing | None:
    """Returns this process's Continuing; None if the process uses torch's own group."""
    return _current


class _Messages(threading.local):
    own = False


#: `own` is true while this thread's messages belong to a recovery. Other messages prevent a script from continuing.
messages = _Messages()


class GroupLostError(RuntimeError):
    """A collective's result can't be used, because the group has broken."""


def check() -> None:
    """Raises GroupLostError if the group has broken, so that a collective's result isn't used."""
    if _current is not None and _current.able and _current.broken:
        raise GroupLostError("the group has broken")


def install() -> None:
    """Wrap torch's functions. Later calls do nothing."""
    global _wrapped
    if _wrapped or not dist.is_available():
        return
    _wrapped = True
    wrappers: dict[str, Callable[..., Any]] = {"init_process_group": _init_process_group, "new_group": _new_group}
    wrappers |= dict.fromkeys((*_SENDING, "all_gather_object", "gather_object"), _objects)
    for name, wrapper in wrappers.items():
        original = getattr(dist, name)
        function = functools.wraps(original)(functools.partial(wrapper, original))
        # Modules that have imported the function by name, such as torch's device meshes or the script's, need it too.
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, function)


def _init_process_group(
    original: Any,
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    *others: Any,
    device_id: Any = None,
    **options: Any,
) -> None:
    global _current
    accelerator = _accelerator(backend)
    usual = init_method in (None, "env://") and store is None and not others and bool(os.environ.get(FILE_VARIABLE))
    if usual:
        own = {"rank": os.environ["RANK"], "world_size": os.environ["WORLD_SIZE"]}
        usual = str(rank) in ("-1", own["rank"]) and str(world_size) in ("-1", own["world_size"])
    if usual and _current is not None:
        _current.obstacle = "it makes its process group a second time"
    if accelerator is None or not usual or _current is not None or os.environ["WORLD_SIZE"] == "1":
        original(backend, init_method, timeout, world_size, rank, store, *others, device_id=device_id, **options)
        return
    # Imported only by ranks that can continue.
    from trainloop.continuing.forming import Continuing

    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timeout or (_torch.default_pg_nccl_timeout if accelerator else _torch.default_pg_timeout)
    attempt, file = int(os.environ.get("TRAINMASTER_ATTEMPT", "1")), Path(os.environ[FILE_VARIABLE])
    joins = JOINS_VARIABLE in os.environ
    _current = Continuing(number, size, attempt, file, joins=joins, accelerator=accelerator, timeout=timeout)
    if joins:
        # The rank is alone until it joins, so it needs no store in which it meets other ranks.
        original(BACKEND, store=HashStore(), rank=number, world_size=size, timeout=timeout, **options)
    else:
        original(BACKEND, init_method, timeout, world_size, rank, **options)
    _name(dist.group.WORLD, accelerator)


def _new_group(
    original: Any,
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    *others: Any,
    **options: Any,
) -> Any:
    accelerator = _accelerator(backend)
    if _current is None or others or accelerator is None:
        if _current is not None:
            _current.obstacle = f"it makes a group of its own with the backend {backend}"
        return original(ranks, timeout, backend, *others, **options)
    made = original(ranks, timeout, BACKEND, **options)
    if made is not dist.GroupMember.NON_GROUP_MEMBER:
        _name(made, accelerator)
    return made


def _objects(original: Any, *arguments: Any, **options: Any) -> None:
    """Run a collective of pickled objects.

    If the collective is skipped, the script's list stays unchanged, because no bytes were received. If the sender of a
    broadcast is absent, the lowest present rank sends its own objects.
    """
    given = inspect.signature(original).bind(*arguments, **options)
    group = given.arguments.get("group") or dist.group.WORLD
    if _current is None or group not in _current.groups:
        original(*arguments, **options)
        return
    if original.__name__ in _SENDING and group.is_alone:
        return
    if original.__name__ == "broadcast_object_list":
        source, place = given.arguments.pop("src", None), given.arguments.get("group_src")
        place = group.ranks.index(source or 0) if place is None else place
        given.arguments["group_src"] = place if place in group.members else group.members[0]
    try:
        original(*given.args, **given.kwargs)
    except Exception:
        if not group.is_alone:
            raise


def _create(options: Any, _backend_options: Any) -> Group:
    assert _current is not None
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _current.create(options.store, ranks)


def _accelerator(backend: str | None) -> str | None:
    """Returns the accelerator's backend that the argument `backend` requests, or "" if it requests none.

    Returns None if it requests a backend with which ranks can't continue.
    """
    if backend is None:
        return "nccl" if torch.cuda.is_available() else ""
    asked = {part.rpartition(":")[2] for part in backend.lower().split(",")}
    if not asked <= {"gloo", "nccl"}:
        return None
    return "nccl" if "nccl" in asked else ""


def _name(group: Any, accelerator: str) -> None:
    """Make torch report the backend that the script requested."""
    _, store = _torch._world.pg_map[group]
    config = f"cpu:gloo,cuda:{accelerator}" if accelerator else "cpu:gloo,cuda:gloo"
    _torch._world.pg_map[group] = (accelerator or "gloo", store)
    _torch._world.pg_backend_config[group] = config
