"""A lookup is something that a decision needs beyond the job's own objects: it is read when a job needs it.

A `Lookup` declares which questions a job has, how they are answered, where the answers are recorded and for how long
they are fresh. `Lookups` runs all of them in each pass over a job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from trainmaster_operator.controller.apiserver.cluster import EVENTS, Cluster, RawObject, Resource
from trainmaster_operator.controller.apiserver.errors import ClusterError, Forbidden, NotFound
from trainmaster_operator.controller.cache.records import JobKey, Snapshot
from trainmaster_operator.controller.cache.store import Store

logger = logging.getLogger(__name__)

Question = TypeVar("Question")
Answer = TypeVar("Answer")
# Objects that are read at the same time.
CONCURRENT_READS = 16


@dataclass(frozen=True)
class Lookup(Generic[Question, Answer]):
    """Declares one kind of question.

    `read` returns the answer to each question, None where there is none, and leaves out what can't be answered now. It
    raises ClusterError only where there must be no decision without an answer.
    """

    name: str
    # What the job needs to know, and doesn't know yet.
    needed: Callable[[Snapshot], Collection[Question]]
    read: Callable[[Cluster, JobKey, Collection[Question]], Awaitable[Mapping[Question, Answer | None]]]
    record: Callable[[Store, JobKey, Mapping[Question, Answer | None]], None]
    # Whether the pass waits for the answers before it decides.
    before_decision: bool = False
    # Seconds until a question is asked again that has no answer.
    retry_seconds: float = 5.0
    # Whether None is an answer, or is asked again.
    none_is_final: bool = True
    # Seconds after which an answer that is still needed is read again; None: an answer holds as long as the job lives.
    # One that isn't needed any more is recorded as None.
    fresh_seconds: float | None = None
    # Seconds for which something has to be needed before it is asked, of answers that are fresh for a time only.
    patience_seconds: float = 0.0


@dataclass
class _Asked(Generic[Question]):
    """Holds when a job began to need answers of a kind, when they were read, and which questions have one."""

    since: float
    at: float = float("-inf")
    answered: set[Question] = field(default_factory=set)


class Lookups:
    """Runs lookups for all jobs. `clock` is in seconds."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        lookups: Sequence[Lookup[Any, Any]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._before = tuple(lookup for lookup in lookups if lookup.before_decision)
        self._after = tuple(lookup for lookup in lookups if not lookup.before_decision)
        self._clock = clock
        # By the job's uid and the lookup's name, of answers that are fresh for a time only.
        self._asked: dict[str, dict[str, _Asked[Any]]] = {}

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._asked.pop(uid, None)

    async def before_decision(self, key: JobKey, snapshot: Snapshot) -> bool:
        """Read what the decision waits for; returns whether anything was recorded."""
        recorded = False
        for lookup in self._before:
            questions = lookup.needed(snapshot)
            if questions:
                lookup.record(self._store, key, await lookup.read(self._cluster, key, questions))
                recorded = True
        return recorded

    async def after_decision(self, key: JobKey, snapshot: Snapshot) -> float | None:
        """Read what a later decision needs; returns the seconds until the next read, None when none is needed."""
        wait: float | None = None
        for lookup in self._after:
            again = await self._run(lookup, key, snapshot)
            if again is not None:
                wait = again if wait is None else min(wait, again)
        return wait

    async def _run(self, lookup: Lookup[Any, Any], key: JobKey, snapshot: Snapshot) -> float | None:
        questions = lookup.needed(snapshot)
        if lookup.fresh_seconds is not None:
            return await self._keep_fresh(lookup, lookup.fresh_seconds, key, snapshot, questions)
        if not questions:
            return None
        answers = await lookup.read(self._cluster, key, questions)
        if answers:
            lookup.record(self._store, key, answers)
        final = {question for question, answer in answers.items() if answer is not None or lookup.none_is_final}
        return None if final.issuperset(questions) else lookup.retry_seconds

    async def _keep_fresh(
        self, lookup: Lookup[Any, Any], seconds: float, key: JobKey, snapshot: Snapshot, questions: Collection[Any]
    ) -> float | None:
        uid = snapshot.job.uid
        asked = self._asked.get(uid, {}).get(lookup.name)
        if asked is not None and (settled := asked.answered.difference(questions)):
            asked.answered -= settled
            lookup.record(self._store, key, dict.fromkeys(settled))
        if not questions:
            if asked is not None:
                del self._asked[uid][lookup.name]
            return None
        now = self._clock()
        if asked is None:
            asked = self._asked.setdefault(uid, {})[lookup.name] = _Asked(now)
        due = max(asked.since + lookup.patience_seconds, asked.at + seconds)
        if now < due:
            return due - now
        asked.at = now
        answers = await lookup.read(self._cluster, key, questions)
        asked.answered.update(answers)
        lookup.record(self._store, key, answers)
        return seconds


def get_each(
    resource: Resource, name: Callable[[Question], str], answer: Callable[[Question, RawObject], Answer | None]
) -> Callable[[Cluster, JobKey, Collection[Question]], Awaitable[Mapping[Question, Answer | None]]]:
    """Returns the `read` of a lookup whose questions are each answered by one object that has no namespace.

    What isn't there, or may not be read, has the answer None.
    """

    async def read(cluster: Cluster, key: JobKey, questions: Collection[Question]) -> Mapping[Question, Answer | None]:
        slots = asyncio.Semaphore(CONCURRENT_READS)
        answers: dict[Question, Answer | None] = {}

        async def get(question: Question) -> None:
            async with slots:
                try:
                    answers[question] = answer(question, await cluster.get(resource, "", name(question)))
                except (NotFound, Forbidden) as error:
                    logger.info("%s: %s %s can't be read: %s", key, resource.kind, name(question), error.message)
                    answers[question] = None
                except ClusterError as error:
                    logger.warning("%s: %s %s can't be read now: %s", key, resource.kind, name(question), error)

        await asyncio.gather(*(get(question) for question in questions))
        return answers

    return read


async def list_events(cluster: Cluster, namespace: str, field_selector: str) -> list[RawObject]:
    """Returns the Events of a namespace that a selector names. Raises ClusterError."""
    return [event async for page in cluster.pages(EVENTS, namespace, field_selector=field_selector) for event in page]
