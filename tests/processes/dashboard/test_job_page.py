"""A job's page shows the job while it runs, its ranks, its output, its records, and the few possible actions."""

from __future__ import annotations

import asyncio
import csv
from contextlib import suppress
from typing import Any, cast

import pytest

from tests.processes.dashboard.fake_api import EDIT, JOBS, VIEW, FakeApi, job, running_pod
from tests.processes.dashboard.test_list import dashboard
from trainmaster.client import JobNotFound, NoCluster
from trainmaster.client.history.answers import MetricNames, Series
from trainmaster.client.history.finding import NoHistory
from trainmaster.client.server import Server
from trainmaster.dashboard import job_page, logs, reading

FAILURE = {
    "attempt": 1,
    "reason": "OOMKilled",
    "message": "rank 1 was killed for memory\nand more",
    "failedAt": "2026-11-26T01:00:30Z",
}
METRICS = "\n".join(
    f'trainmaster_{name}{{job="bert",worker="0",rank="{rank}"}} {value}'
    for rank in (0, 1)
    for name, value in (("step", 7), ("loss", 0.5), ("step_seconds", 0.1 + rank))
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_page, "PODS_SECONDS", 0.05)
    monkeypatch.setattr(job_page, "BROKEN_SECONDS", 0.05)
    monkeypatch.setattr("trainmaster.dashboard.figures.SECONDS", 0.05)
    monkeypatch.setattr(logs, "BATCH_SECONDS", 0.01)


def training(**rights: frozenset[tuple[str, str, str]]) -> FakeApi:
    api = FakeApi(rights, metrics=METRICS)
    api.put(job("bert", startTime="2026-11-26T01:00:01Z", attemptStartTime="2026-11-26T01:00:02Z"))
    api.pods = [running_pod(0)]
    return api


async def test_a_job_is_followed_with_its_pods_ranks_and_attempts_until_it_is_deleted() -> None:
    api = training(alice=VIEW)
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as page:
        first = await page.next("job")
        assert first["live"] and first["row"]["name"] == "bert" and first["spec"] == {"workers": 2}
        assert (await page.next("attempts"))[0]["startedAt"] == "2026-11-26T01:00:02Z"
        assert (await page.next("pods"))[0]["node"] == "node-0"
        ranks = await page.next("ranks", why=None)
        assert [(one["rank"], one["step"], one["stepSeconds"]) for one in ranks["ranks"]] == [(0, 7, 0.1), (1, 7, 1.1)]
        api.put(job("bert", attempt=2, restarts=1, failures=[FAILURE], phase="Restarting"))
        assert (await page.next("job"))["row"]["failure"] == "rank 1 was killed for memory"
        attempts = await page.next("attempts")
        assert [(one["attempt"], one["outcome"]) for one in attempts] == [(1, "Failed"), (2, "Starting")]
        assert attempts[0]["failure"]["reason"] == "OOMKilled"
        _, curves = await client.get("/api/jobs/team/bert/curves?names=slowestStepSeconds", "alice")
        (curve,) = curves["curves"]
        assert curve["step"][0] == 7 and curve["lines"][0]["values"][0] == 1.1
        _, heat = await client.get("/api/jobs/team/bert/heat?columns=1", "alice")
        assert (heat["ranks"], heat["values"]) == ([0, 1], [[0.1, 1.1]])
        status, text = await client.get("/api/jobs/team/bert/export?format=csv", "alice")
        assert status == 200 and text.startswith("at,attempt,step,loss,")
        api.delete("bert")
        assert (await page.end())[-1] == ("gone", {})


async def test_any_metric_and_the_workers_systems_are_curves_and_runs_are_compared() -> None:
    api = training(alice=VIEW, carol=VIEW - {("get", "pods/proxy", "")})
    api.metrics = METRICS + (
        '\ntrainmaster_metric{job="bert",worker="0",name="eval_f1",rank="0"} 0.5'
        '\ntrainmaster_cpu_cores{job="bert",worker="0"} 1.5\ntrainmaster_cpu_limit_cores{job="bert",worker="0"} 4'
        '\ntrainmaster_gpu_utilization{job="bert",worker="0",gpu="1"} 0.25\n'
    )
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as page:
        await page.next("ranks", why=None)
        _, names = await client.get("/api/jobs/team/bert/metrics", "alice")
        assert [(each["name"], each["kind"], each["unit"], each["limitedBy"]) for each in names["items"]] == [
            ("loss", "training", "", None),
            ("stepSeconds", "training", "s", None),
            ("slowestStepSeconds", "training", "s", None),
            ("eval_f1", "training", "", None),
            ("cpuCores", "system", "cores", "cpuLimitCores"),
            ("gpuUtilization", "system", "ratio", None),
        ]
        _, found = await client.get("/api/jobs/team/bert/curves?names=eval_f1,gpuUtilization,cpuCores,none", "alice")
        shown = {
            curve["name"]: [{**line, "values": line["values"][0]} for line in curve["lines"]]
            for curve in found["curves"]
        }
        nothing = {"worker": None, "gpu": None, "of": None, "limit": None}
        assert shown == {
            "eval_f1": [{**nothing, "values": 0.5}],
            "gpuUtilization": [{**nothing, "worker": 0, "gpu": 1, "values": 0.25}],
            "cpuCores": [{**nothing, "worker": 0, "limit": 4.0, "values": 1.5}],
        }
        _, text = await client.get("/api/jobs/team/bert/export?format=csv", "alice")
        assert text.splitlines()[0].endswith(",metrics.eval_f1")
        jobs = "job=team/bert/uid-bert&job=team/gone&job=other/bert"
        _, compared = await client.get(f"/api/compare?metric=eval_f1&x=seconds&{jobs}", "alice")
        assert (compared["metric"], compared["x"]) == ("eval_f1", "seconds")
        first, second, third = compared["runs"]
        assert (first["uid"], first["x"][0], first["values"][0], first["problem"]) == ("uid-bert", 0.0, 0.5, None)
        assert second["values"] == [] and second["problem"] == "There is no job gone in namespace team."
        assert third["problem"] == "There is no job bert in namespace other.", "the viewer's own rights decide"
        _, refused = await client.get("/api/compare?metric=loss&job=team/bert", "carol")
        assert "may not get pods/proxy" in refused["runs"][0]["problem"]
        for wrong in ("metric=loss", "metric=a%20b&job=team/bert", "job=team/bert", "metric=loss&job=bert", "x=y"):
            assert (await client.get(f"/api/compare?{wrong}", "alice"))[0] == 400
        assert (await client.get("/api/compare?metric=loss&" + "&".join(f"job=a/b{n}" for n in range(9)), "alice"))[
            0
        ] == 400


async def test_who_may_not_ask_the_agents_is_told_so_and_sees_nothing_that_others_asked() -> None:
    api = training(alice=VIEW, carol=VIEW - {("get", "pods/proxy", "")})
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as alices:
        await alices.next("ranks", why=None)
        async with client.live("/api/jobs/team/bert", "carol") as page:
            ranks = await page.next("ranks")
            assert not ranks["ranks"] and "may not get pods/proxy in namespace team" in ranks["why"]
        assert (await client.get("/api/jobs/team/bert/curves?names=loss", "carol"))[0] == 403


async def test_a_job_that_isnt_there_is_a_sentence() -> None:
    async with dashboard(training(alice=VIEW)) as client:
        assert await client.get("/api/jobs/team/none", "alice") == (
            404,
            {"sentence": "There is no job none in namespace team."},
        )
        status, answer = await client.get("/api/jobs/team/bert?uid=uid-before", "alice")
        assert status == 404 and "another one has its name now" in answer["sentence"]
        assert (await client.get("/api/history/jobs", "alice"))[0] == 404


async def test_a_page_of_an_earlier_job_does_nothing_to_the_one_that_has_its_name() -> None:
    api = training(alice=EDIT)
    async with dashboard(api) as client:
        async with client.live("/api/jobs/team/bert", "alice") as page:
            await page.next("ranks", why=None)
        for action in ("suspend", "resume", "restart", "stacks"):
            status, answer = await client.post(f"/api/jobs/team/bert/{action}?uid=uid-before", "alice")
            assert status == 404 and "another one has its name now" in answer["sentence"], action
        for question in ("why", "metrics", "heat", "export"):
            assert (await client.get(f"/api/jobs/team/bert/{question}?uid=uid-before", "alice"))[0] == 404, question
        assert api.asked["alice", "patch", JOBS] == 0
        assert (await client.post("/api/jobs/team/bert/suspend?uid=uid-bert", "alice"))[0] == 200


async def test_diagnoses_that_nobody_waits_for_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("trainmaster.dashboard.job_answers.gather", stuck)
    async with dashboard(training(alice=VIEW)) as client:
        for _ in range(40):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.get("/api/jobs/team/bert/why", "alice")
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)


async def test_logs_of_all_ranks_come_as_they_are_printed() -> None:
    api = training(alice=VIEW)
    api.pods = [running_pod(0), running_pod(1)]
    for worker in (0, 1):
        api.say(f"bert-{worker}", "--- attempt 1 ---")
        api.say(f"bert-{worker}", f"[rank {worker}]: begins </script>")
    async with dashboard(api) as client:
        async with client.live("/api/jobs/team/bert/logs?follow=1", "alice") as page:
            found: list[Any] = []
            while len(found) < 4:
                found += await page.next("lines")
            assert [(line["worker"], line["rank"], line["text"]) for line in found if line["rank"] is not None] == [
                (0, 0, "begins </script>"),
                (1, 1, "begins </script>"),
            ]
            api.say("bert-1", "[rank 1]: steps")
            (line,) = await page.next("lines")
            assert (line["rank"], line["text"]) == (1, "steps") and line["at"] > 1.7e9
        async with client.live("/api/jobs/team/bert/logs?rank=1", "alice") as page:
            events = await page.end()
            assert [line["text"] for name, lines in events if name == "lines" for line in lines] == [
                "begins </script>",
                "steps",
            ]
            assert events[-1] == ("end", {})


async def test_a_line_without_an_end_costs_little() -> None:
    api = training(alice=VIEW)
    api.say("bert-0", "[rank 0]: " + "x" * 3_000_000)
    async with dashboard(api) as client, client.live("/api/jobs/team/bert/logs", "alice") as page:
        (first, *_) = lines = [line for name, found in await page.end() if name == "lines" for line in found]
        assert first["rank"] == 0 and all(len(line["text"]) <= reading.MOST_LOG_BYTES for line in lines)
        assert sum(len(line["text"]) for line in lines) < 50_000


async def test_a_log_without_a_beginning_is_of_the_attempt_that_the_failures_say() -> None:
    api = training(alice=VIEW)
    api.put(job("bert", attempt=2, failures=[FAILURE]))
    api.say("bert-0", "[rank 0]: behind the failure")
    async with dashboard(api) as client:
        for attempt, texts in ((1, []), (2, ["behind the failure"])):
            async with client.live(f"/api/jobs/team/bert/logs?attempt={attempt}", "alice") as page:
                found = [line["text"] for name, lines in await page.end() if name == "lines" for line in lines]
                assert found == texts


async def test_who_reads_a_log_slowly_makes_its_reading_wait() -> None:
    api = training(alice=VIEW)
    api.logs["bert-0"] = [f"2026-11-26T02:00:00Z [rank 0]: {'x' * 500}"] * 100_000
    async with dashboard(api) as client, client.live("/api/jobs/team/bert/logs?follow=1", "alice") as page:
        await page.next("lines")
        sent = [-1, 0]
        while sent[-1] != sent[-2]:
            await asyncio.sleep(0.3)
            sent.append(api.lines_sent)
        assert 0 < api.lines_sent < 60_000, "it stands still, and most wasn't read"


async def test_only_who_may_change_the_job_suspends_it() -> None:
    api = training(alice=EDIT, carol=VIEW)
    async with dashboard(api) as client:
        status, answer = await client.post("/api/jobs/team/bert/suspend", "carol")
        assert status == 403 and f'cannot patch resource "{JOBS}"' in answer["sentence"]
        assert api.objects["team", "bert"]["spec"] == {"workers": 2}
        assert await client.post("/api/jobs/team/bert/suspend", "alice") == (
            200,
            {"sentence": "Job bert will be suspended: its ranks save a checkpoint first."},
        )
        assert api.objects["team", "bert"]["spec"]["runPolicy"] == {"suspend": True}
        assert (await client.post("/api/jobs/team/bert/resume", "alice"))[0] == 200
        assert (await client.post("/api/jobs/team/bert/restart", "alice"))[0] == 200
        assert "trainmaster.dev/restart" in api.objects["team", "bert"]["metadata"]["annotations"]


async def test_a_page_knows_who_may_change_the_job_and_has_the_events_of_all_its_pods() -> None:
    api = training(alice=EDIT, carol=VIEW)
    at = {"lastTimestamp": "2026-11-26T01:00:09Z", "reason": "Pulled", "type": "Normal"}
    for kind, name in (("DistributedTrainingJob", "bert"), ("Pod", "bert-0"), ("Pod", "bert-7"), ("Pod", "bert-x-0")):
        api.events += [{**at, "involvedObject": {"kind": kind, "name": name}}] * 2
    async with dashboard(api) as client:
        async with client.live("/api/jobs/team/bert", "alice") as page:
            await page.next("job", mayChange=True)
            found = [(event["object"], event["count"]) for event in await page.next("events")]
            assert found == [("dtj/bert", 2), ("pod/bert-0", 2), ("pod/bert-7", 2)], "bert-x is another job"
        async with client.live("/api/jobs/team/bert", "carol") as page:
            await page.next("ranks")
            assert not any(data["mayChange"] for name, data in page.events if name == "job")


ATTEMPT = {
    **dict.fromkeys(("startedAt", "runningAt", "endedAt", "failure", "firstStep", "lastStep")),
    **{"attempt": 1, "outcome": "Failed", "runningAt": "2026-11-26T01:00:03Z", "workers": [{"worker": 0}]},
}


class History:
    """Serves a history with one job; it knows its viewer by the server that they reach."""

    def __init__(self, server: Server) -> None:
        self.authorization, self.closed = server.authorization(), False

    async def close(self) -> None:
        self.closed = True

    async def jobs(
        self, namespace: str | None = None, *, name: str | None = None, limit: int = 500, after: str = ""
    ) -> dict[str, Any]:
        if self.authorization != "Bearer alice":
            raise NoHistory("There is none.")
        failure = {"message": "KeyError: 7; rank 1 (worker 0, pod gone-0, node a) ended with exit code 1"}
        return {
            "kind": "RecordedJobList",
            "items": [{"name": "gone", "lastFailure": failure}, {"name": "well", "lastFailure": None}],
        }

    async def job(self, namespace: str, name: str, *, uid: str | None = None) -> dict[str, Any]:
        if name not in ("gone", "bert"):
            raise JobNotFound("The history has no such job.")
        of_a_job = {"job": job("gone", phase="Failed"), "attempts": [ATTEMPT]}
        return {**of_a_job, "deletedAt": "2026-11-26T02:00:00Z"}

    async def names(self, *_: object, **__: object) -> dict[str, Any]:
        """Returns no names."""
        return MetricNames().to_data()

    async def series(self, *_: object, **__: object) -> dict[str, Any]:
        return Series.of(at=[1.0], attempt=[1], loss=[0.5], timeSpent={"productive": [2.0]}).to_data()

    async def heat(self, *_: object, **__: object) -> dict[str, Any]:
        return {"kind": "RankHeat", "at": [1.0], "ranks": [0], "workers": [0], "values": [[0.75]]}

    async def evidence(self, *_: object, **__: object) -> dict[str, Any]:
        return {"items": [{"attempt": 1}]}

    async def logs(self, *_: object, **__: object) -> dict[str, Any]:
        return {"items": [{"worker": 1, "lines": ["[rank 1]: last words"], "times": [1_000], "cut": False}]}


async def test_a_page_keeps_its_job_while_the_api_server_is_away() -> None:
    api = training(alice=VIEW)
    async with dashboard(api) as client, client.live("/api/jobs/team/bert", "alice") as page:
        await page.next("job")
        api.broken = 500
        api.break_watches()
        found = await page.next("problem")
        assert found["sentence"].startswith("The API server hasn't answered since ") and found["what"] == "api"
        api.broken = 0
        assert (await page.next("job"))["row"]["name"] == "bert", "the job comes again, which ends the message"


class AwayHistory(History):
    """A history that doesn't answer, or that the cluster doesn't announce."""

    error: Exception = NoCluster("The history at x doesn't answer.")

    async def jobs(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise self.error


async def test_a_history_that_doesnt_answer_stays_in_the_page_and_is_named() -> None:
    api = training(alice=VIEW)
    async with dashboard(api, history_of=cast(Any, AwayHistory)) as client:
        assert (await client.get("/api/viewer", "alice"))[1]["history"] is True
        status, answer = await client.get("/api/history/jobs", "alice")
        assert status == 502 and answer["sentence"].startswith("The history hasn't answered since ")
        assert answer["sentence"].endswith(" deleted jobs are missing. The history at x doesn't answer.")


async def test_a_cluster_without_a_history_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AwayHistory, "error", NoHistory("The cluster announces no history."))
    async with dashboard(training(alice=VIEW), history_of=cast(Any, AwayHistory)) as client:
        assert (await client.get("/api/viewer", "alice"))[1]["history"] is False


async def test_what_the_history_has_is_shown_also_of_a_job_that_is_gone() -> None:
    made: list[History] = []

    def history_of(server: Server) -> Any:
        made.append(History(server))
        return made[-1]

    api = training(alice=VIEW, carol=VIEW - {("get", "pods/proxy", "")})
    async with dashboard(api, history_of=history_of) as client:
        assert (await client.get("/api/viewer", "alice"))[1]["history"] is True
        assert (await client.get("/api/viewer", "carol"))[1]["history"] is False
        status, recorded = await client.get("/api/history/jobs", "alice")
        found = [(each["name"], each["failure"]) for each in recorded["items"]]
        assert (status, found) == (200, [("gone", "KeyError: 7; rank 1 ended with exit code 1"), ("well", None)])
        async with client.live("/api/jobs/team/gone", "alice") as page:
            found = await page.next("job")
            assert (found["live"], found["row"]["phase"]) == (False, "Failed")
            assert found["row"]["deletedAt"] == "2026-11-26T02:00:00Z"
            assert await page.next("attempts") == [ATTEMPT]
        async with client.live("/api/jobs/team/gone/logs?follow=1", "alice") as page:
            assert await page.next("lines") == [{"at": 1.0, "worker": 1, "rank": 1, "text": "last words"}]
        assert await client.get("/api/jobs/team/gone/evidence", "alice") == (200, {"items": [{"attempt": 1}]})
        assert "phase" not in (await client.get("/api/jobs/team/gone/manifest", "alice"))[1]
        _, text = await client.get("/api/jobs/team/gone/export", "alice")
        names, values = csv.reader(text.splitlines())
        known = [(name, value) for name, value in zip(names, values, strict=True) if value]
        assert known == [("at", "1.0"), ("attempt", "1"), ("loss", "0.5"), ("timeSpent.productive", "2.0")]
        assert await client.get("/api/jobs/team/never/evidence", "alice") == (
            404,
            {"sentence": "There is no job never in namespace team."},
        )
        # A viewer who may not ask the agents sees the recorded ranks.
        async with client.live("/api/jobs/team/bert", "carol") as page:
            ranks = await page.next("ranks", why=None)
            assert [(one["rank"], one["stepSeconds"], one["step"]) for one in ranks["ranks"]] == [(0, 0.75, None)]
            attempts = [data[0] for name, data in page.events if name == "attempts"]
            while not any(attempt["runningAt"] for attempt in attempts):
                attempts = await page.next("attempts")
    assert made and all(history.closed for history in made)


async def test_what_is_asked_once() -> None:
    api = training(alice=VIEW)
    api.objects["team", "bert"]["metadata"]["managedFields"] = [{"manager": "x"}]
    async with dashboard(api) as client:
        status, why = await client.get("/api/jobs/team/bert/why", "alice")
        assert status == 200 and why["name"] == "bert" and why["sentence"]
        status, manifest = await client.get("/api/jobs/team/bert/manifest", "alice")
        assert status == 200 and "workers: 2" in manifest
        assert "managedFields" not in manifest and "status" not in manifest
        assert await client.get("/api/jobs/team/bert/evidence", "alice") == (200, {"items": []})
        for wrong in ("heat?figure=x", "heat?columns=-1", "curves?from=x", "logs?rank=1e3", "heat?columns=9999999"):
            status, answer = await client.get(f"/api/jobs/team/bert/{wrong}", "alice")
            assert status == 400 and answer["sentence"], wrong
