"""Carrying out writes: what counts as done, as stale, as blocked, and what is raised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support import bodies

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.apply import errors
from shardwright.apply.events import cut, event_body
from shardwright.apply.executor import Executor
from shardwright.apply.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, JOB, POD, SERVICE
from shardwright.apply.writes import (
    Apply,
    ApplyStatus,
    Create,
    Delete,
    Patch,
    PostEvent,
    Together,
    Write,
)
from shardwright.control.store import Store

Body = dict[str, Any]


class Server:
    """Answers calls from a script, and keeps what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, list[Body | Exception]] = {}
        self.objects: dict[tuple[str, str], Body] = {}
        self.most_at_once = 0
        self._now = 0
        self._version = 100

    async def _answer(self, verb: str, kind: str, name: str, body: Body) -> Body:
        self.calls.append((verb, kind, name))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        scripted = self.answers.get(verb)
        if scripted:
            answer = scripted.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        self._version += 1
        meta = {"uid": f"uid-{name}", **body.get("metadata", {})}
        return {**body, "kind": kind, "metadata": {**meta, "resourceVersion": str(self._version)}}

    async def create(self, kind: str, body: Body) -> Body:
        return await self._answer("create", kind, body["metadata"]["name"], body)

    async def apply(self, kind: str, body: Body, *, manager: str) -> Body:
        assert manager == names.MANAGER_CHILDREN
        return await self._answer("apply", kind, body["metadata"]["name"], body)

    async def apply_status(self, kind: str, body: Body, *, manager: str) -> Body:
        assert manager == names.MANAGER_STATUS
        return await self._answer("status", kind, body["metadata"]["name"], body)

    async def json_patch(self, kind: str, namespace: str, name: str, ops: Any) -> Body:
        self.ops = list(ops)
        meta = {"namespace": namespace, "name": name}
        return await self._answer("patch", kind, name, {"metadata": meta})

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Body:
        self.deleted = (uid, grace_seconds)
        return await self._answer("delete", kind, name, {"metadata": {"namespace": namespace}})

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        assert namespace == "llm"
        self.calls.append(("get", kind, name))
        if (kind, name) not in self.objects:
            raise errors.NotFound("get", 404, "NotFound", name)
        return self.objects[kind, name]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def store() -> Store:
    return Store(Settings())


@pytest.fixture
def executor(server: Server, store: Store) -> Executor:
    return Executor(server, store, instance="test", parallel=3)  # type: ignore[arg-type]


def new_pod(name: str = "p") -> Body:
    body = bodies.pod(name, "", 0, owners=[bodies.owner("me")])
    del body["metadata"]["uid"]
    return body


def taken(name: str = "p") -> errors.AlreadyExists:
    return errors.AlreadyExists("create", 409, "AlreadyExists", f'pods "{name}" already exists')


EVENT_POST = PostEvent("llm", "a", "uid-a", "Built", "engine built", "Build", key="1", at=0.0)


async def test_what_was_created_is_in_the_store_at_once(
    executor: Executor, server: Server, store: Store
) -> None:
    outcome = await executor.execute([Create(POD, new_pod(), "me")])
    assert outcome.complete
    assert outcome.done == 1
    assert [pod.name for pod in store.pods_of("me")] == ["p"]


async def test_writes_keep_their_order_and_groups_run_together_but_bounded(
    executor: Executor, server: Server
) -> None:
    group = Together(tuple(Create(POD, new_pod(f"p{number}")) for number in range(8)))
    await executor.execute([Create(SERVICE, new_pod("first")), group, Create(JOB, new_pod("last"))])
    assert server.calls[0][2] == "first"
    assert server.calls[-1][2] == "last"
    assert server.most_at_once == 3


async def test_a_pod_that_is_there_already_counts_when_its_owner_is_the_same(
    executor: Executor, server: Server, store: Store
) -> None:
    server.answers["create"] = [taken()]
    server.objects[POD, "p"] = bodies.pod("p", "u", 5, owners=[bodies.owner("me")])
    outcome = await executor.execute([Create(POD, new_pod(), "me")])
    assert outcome.complete
    assert store.pods.get("llm", "p") is not None


@pytest.mark.parametrize(
    ("owner", "deleting", "told"),
    [
        ("somebody", False, "Pod p belongs to somebody"),
        ("me", True, "Pod p is being deleted"),
    ],
)
async def test_a_name_taken_by_another_or_by_one_that_ends_blocks(
    executor: Executor, server: Server, owner: str, deleting: bool, told: str
) -> None:
    server.answers["create"] = [taken()]
    there = bodies.pod("p", "u", 5, owners=[bodies.owner(owner)])
    if deleting:
        there["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.objects[POD, "p"] = there
    outcome = await executor.execute(
        [Create(POD, new_pod(), "me"), Create(POD, new_pod("later"), "me")]
    )
    assert outcome.blocked == [told]
    assert outcome.left_out == 1
    assert ("create", POD, "later") not in server.calls


@pytest.mark.parametrize(
    ("key", "blocked"),
    [("k1", []), ("other", [f"Job j has {names.LABEL_KEY}=other, not k1"])],
)
async def test_a_job_that_is_there_already_counts_when_step_and_key_are_the_same(
    executor: Executor, server: Server, key: str, blocked: list[str]
) -> None:
    server.answers["create"] = [taken("j")]
    server.objects[JOB, "j"] = bodies.job("j", "u", 5, owners=["another deployment"], key=key)
    outcome = await executor.execute([Create(JOB, bodies.job("j", "", 0, owners=["me"]))])
    assert outcome.blocked == blocked


async def test_a_name_that_was_free_again_when_looked_at_is_stale(
    executor: Executor, server: Server
) -> None:
    server.answers["create"] = [taken()]
    outcome = await executor.execute([Create(POD, new_pod(), "me")])
    assert outcome.stale
    assert not outcome.complete


async def test_a_quota_refusal_is_an_outcome_with_the_servers_words(
    executor: Executor, server: Server
) -> None:
    words = 'pods "p" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8'
    server.answers["create"] = [errors.Forbidden("create", 403, "Forbidden", words)]
    outcome = await executor.execute([Create(POD, new_pod()), Create(POD, new_pod("q"))])
    assert outcome.quota == words
    assert outcome.left_out == 1


async def test_missing_rights_are_raised(executor: Executor, server: Server) -> None:
    server.answers["create"] = [errors.Forbidden("create", 403, "Forbidden", "user cannot create")]
    with pytest.raises(errors.Forbidden):
        await executor.execute([Create(POD, new_pod())])


async def test_the_rest_of_a_group_is_tried_when_one_of_it_fails(
    executor: Executor, server: Server, store: Store
) -> None:
    server.answers["create"] = [errors.Unavailable("create", 503, "", "away")]
    group = Together((Create(POD, new_pod("a")), Create(POD, new_pod("b"))))
    with pytest.raises(errors.Unavailable):
        await executor.execute([group, Create(POD, new_pod("c"))])
    assert [pod.name for pod in store.pods] == ["b"]


async def test_a_patch_tests_the_uid_once_and_a_refusal_is_stale(
    executor: Executor, server: Server
) -> None:
    patch = Patch(POD, "llm", "p", "u", [{"op": "remove", "path": "/spec/schedulingGates/0"}])
    assert (await executor.execute([patch])).complete
    same = {"op": "test", "path": "/metadata/uid", "value": "u"}
    assert server.ops[0] == same
    await executor.execute([Patch(POD, "llm", "p", "u", server.ops)])
    assert server.ops.count(same) == 1
    for refusal in (
        errors.PatchRejected("patch", 422, "Invalid", "…"),
        errors.Conflict("patch", 409, "Conflict", "…"),
    ):
        server.answers["patch"] = [refusal]
        outcome = await executor.execute([patch])
        assert outcome.stale
        assert not outcome.done


async def test_a_patch_of_what_is_gone_is_stale_and_forgets_it(
    executor: Executor, server: Server, store: Store
) -> None:
    store.observed(POD, bodies.pod("p", "u", 5))
    server.answers["patch"] = [errors.NotFound("patch", 404, "NotFound", "p")]
    assert (await executor.execute([Patch(POD, "llm", "p", "u", [])])).stale
    assert store.pods.get("llm", "p") is None


async def test_deleting_what_is_gone_or_replaced_is_done(
    executor: Executor, server: Server, store: Store
) -> None:
    for answer in (
        errors.NotFound("delete", 404, "NotFound", "p"),
        errors.Conflict("delete", 409, "Conflict", "the UID in the precondition does not match"),
        {"kind": "Status", "status": "Success"},
    ):
        store.observed(POD, bodies.pod("p", "u", 5))
        server.answers["delete"] = [answer]
        outcome = await executor.execute([Delete(POD, "llm", "p", "u", grace_seconds=0)])
        assert outcome.complete
        assert server.deleted == ("u", 0)
        assert store.pods.get("llm", "p") is None


async def test_a_pod_that_ends_gracefully_is_known_to_be_leaving(
    executor: Executor, server: Server, store: Store
) -> None:
    store.observed(POD, bodies.pod("p", "u", 5))
    leaving = bodies.pod("p", "u", 6)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    server.answers["delete"] = [{**leaving, "kind": POD}]
    await executor.execute([Delete(POD, "llm", "p", "u")])
    found = store.pods.get("llm", "p")
    assert found is not None
    assert found.deleting


class TestApply:
    """Applies cost a request only when something would change."""

    @staticmethod
    def service(port: int = 80) -> Write:
        meta = {"namespace": "llm", "name": "s", "uid": "s1", "ownerReferences": []}
        return Apply(SERVICE, {"metadata": meta, "spec": {"port": port}})

    async def test_the_same_again_is_left_out(self, executor: Executor, server: Server) -> None:
        assert (await executor.execute([self.service()])).done == 1
        again = await executor.execute([self.service()])
        assert (again.done, again.skipped, again.complete) == (0, 1, True)
        assert len(server.calls) == 1

    async def test_another_wish_is_applied(self, executor: Executor) -> None:
        await executor.execute([self.service()])
        assert (await executor.execute([self.service(81)])).done == 1

    async def test_a_change_by_others_is_undone(self, executor: Executor, store: Store) -> None:
        await executor.execute([self.service()])
        store.event(SERVICE, "MODIFIED", bodies.child("s", "s1", 999, "me"))
        assert (await executor.execute([self.service()])).done == 1

    async def test_what_was_deleted_is_applied_again(
        self, executor: Executor, store: Store
    ) -> None:
        await executor.execute([self.service()])
        store.event(SERVICE, "DELETED", bodies.child("s", "s1", 999, "me"))
        assert (await executor.execute([self.service()])).done == 1

    async def test_a_conflict_is_stale(self, executor: Executor, server: Server) -> None:
        server.answers["apply"] = [errors.Conflict("apply", 409, "Conflict", "…")]
        assert (await executor.execute([self.service()])).stale
        assert (await executor.execute([self.service()])).done == 1


async def test_a_status_on_an_object_that_moved_on_is_stale(
    executor: Executor, server: Server
) -> None:
    status = ApplyStatus(bodies.deployment("a", "uid-a", 3))
    server.answers["status"] = [errors.Conflict("apply", 409, "Conflict", "…")]
    assert (await executor.execute([status])).stale
    assert (await executor.execute([status])).complete
    assert server.calls[-1] == ("status", DEPLOYMENT, "a")


async def test_an_event_that_was_posted_before_is_no_error(
    executor: Executor, server: Server
) -> None:
    server.answers["create"] = [taken("event")]
    outcome = await executor.execute([EVENT_POST])
    assert outcome.complete
    assert server.calls == [("create", EVENT, event_body(EVENT_POST, "x")["metadata"]["name"])]


async def test_an_event_that_cannot_be_posted_holds_up_nothing(
    executor: Executor, server: Server
) -> None:
    server.answers["create"] = [errors.Forbidden("create", 403, "Forbidden", "terminating")]
    outcome = await executor.execute([EVENT_POST, Create(CONFIG_MAP, new_pod("later"))])
    assert outcome.complete
    assert outcome.done == 1


def test_the_same_transition_has_the_same_event_name_and_another_has_not() -> None:
    def name(**change: Any) -> str:
        values = {
            "reason": "Built",
            "note": "engine built",
            "action": "Build",
            "key": "1",
            "at": 0.0,
        } | change
        found = event_body(PostEvent("llm", "a", "uid-a", **values), "x")["metadata"]["name"]
        assert isinstance(found, str)
        return found

    assert name() == name(at=99.0)
    assert len({name(), name(key="2"), name(reason="Failed"), name(note="n")}) == 4


def test_an_events_note_is_cut_at_1024_bytes_of_utf_8() -> None:
    assert cut("a" * 1024, 1024) == "a" * 1024
    short = cut("→" * 400, 1024)
    assert len(short.encode()) <= 1024
    assert short.endswith("→…")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, b'{"reason":"AlreadyExists","message":"m"}', errors.AlreadyExists),
        (409, b'{"reason":"Conflict","message":"m"}', errors.Conflict),
        (404, b'{"reason":"NotFound","message":"m"}', errors.NotFound),
        (410, b'{"reason":"Expired","message":"m"}', errors.Gone),
        (422, b'{"reason":"Invalid","message":"Pod is invalid"}', errors.Invalid),
        (400, b'{"reason":"BadRequest","message":"unknown field"}', errors.Invalid),
        (
            422,
            b'{"message":"the server rejected our request due to an error in our request"}',
            errors.PatchRejected,
        ),
        (
            500,
            b'{"message":"failed to create typed patch object (llm/c): .dat: field not declared"}',
            errors.Invalid,
        ),
        (401, b"", errors.Unauthorized),
        (500, b"<html>proxy</html>", errors.Unavailable),
        (503, b"[]", errors.Unavailable),
    ],
)
def test_an_answer_becomes_the_exception_that_says_what_to_do(
    status: int, body: bytes, kind: type[errors.ClusterError]
) -> None:
    error = errors.from_response("get Pod llm/p", status, body, {})
    assert type(error) is kind
    assert str(error).startswith("get Pod llm/p: ")


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 1.0), ("Wed, 21 Oct", 1.0)])
def test_too_many_requests_says_how_long_to_wait(header: str, seconds: float) -> None:
    error = errors.from_response("get", 429, b"", {"Retry-After": header} if header else {})
    assert isinstance(error, errors.TooManyRequests)
    assert error.retry_after == seconds
