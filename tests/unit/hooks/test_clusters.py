"""Calls of a cluster's manager: servers that answer as YARN's and Kubernetes' do."""

from __future__ import annotations

import json
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_exactlyonce.control.clusters import Cluster, ClusterState
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks import spark_submit
from airflow_provider_exactlyonce.hooks.clusters import YarnCluster

TOKEN = "6f1d1e0e-7a57-4d29-9a0c-2f4c6a3c1b11"


class Server:
    """Answers GET by a function of path and query, and notes everything else."""

    def __init__(self) -> None:
        self.answer: Callable[[str, dict[str, list[str]]], tuple[int, object]] = lambda path, query: (404, {})
        self.changed: Callable[[str, Any], tuple[int, object]] = lambda path, body: (200, {})
        self.sent: list[tuple[str, str, object]] = []
        self.user: tuple[str, ...] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place = urlsplit(self.path)
                _, _, secret = self.headers.get("Authorization", "").partition("Basic ")
                outer.user = tuple(b64decode(secret).decode().split(":", 1)) if secret else None
                code, body = outer.answer(place.path, parse_qs(place.query))
                self.reply(code, body)

            def change(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(text) if text else None
                outer.sent.append((self.command, self.path, body))
                self.reply(*outer.changed(self.path, body))

            def do_PUT(self) -> None:
                self.change()

            def do_POST(self) -> None:
                self.change()

            def do_DELETE(self) -> None:
                self.change()

            def reply(self, code: int, body: object) -> None:
                text = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_kubernetes_without_airflows_provider_for_it_is_refused_by_name(connect: Callable[..., None]) -> None:
    connect("k8s://https://cluster:6443")
    with pytest.raises(RefusedError, match="install apache-airflow-providers-cncf-kubernetes"):
        spark_submit.cluster_of("spark_default", {})


def test_the_hook_still_has_the_private_names_that_are_used() -> None:
    """When this fails, look at the Spark provider's release notes and change hooks/clusters.py, nothing else."""
    for name in ("_get_yarn_rm_base_url", "_resolved_yarn_rm_auth", "_kill_yarn_application"):
        assert hasattr(SparkSubmitHook, name)


def yarn(server: Server, connect: Callable[..., None]) -> Cluster:
    connect("yarn", yarn_resourcemanager_webapp_address=server.address)
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    return cluster


YARN_ACLS = "yarn.acl.enable"
STATELESS = {"apps": {"app": [{"id": "application_1_0001"}]}}


def resource_manager(
    state: str, final: str = "UNDEFINED", diagnostics: str = "", *, manager: str = "ACTIVE", filters: bool = False
) -> Callable[[str, dict[str, list[str]]], tuple[int, object]]:
    """Answer as YARN does, which has one application, with our tag."""
    app = {"id": "application_1_0001", "state": state, "finalStatus": final, "diagnostics": diagnostics}

    def answer(path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        if path == "/ws/v1/cluster/info":
            return 200, {"clusterInfo": {"haState": manager}}
        if path == "/conf":
            return 200, {"property": {"value": str(query["name"] == [YARN_ACLS] or filters).lower()}}
        if path == "/ws/v1/cluster/apps":
            return 200, {"apps": {"app": [app]} if query.get("applicationTags") == [TOKEN] else None}
        return (200, {"app": app}) if path == "/ws/v1/cluster/apps/application_1_0001" else (404, {})

    return answer


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [
        ("ACCEPTED", "UNDEFINED", ClusterState.ACTIVE),
        ("RUNNING", "UNDEFINED", ClusterState.ACTIVE),
        ("FINISHED", "SUCCEEDED", ClusterState.GONE),
        ("FINISHED", "FAILED", ClusterState.GONE),
        ("KILLED", "KILLED", ClusterState.GONE),
        ("FAILED", "FAILED", ClusterState.GONE),
        ("HIBERNATED", "UNDEFINED", ClusterState.UNKNOWN),  # no state that is listed has ended
    ],
)
def test_yarn_is_asked_by_the_tag(
    server: Server, connect: Callable[..., None], state: str, final: str, expected: ClusterState
) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager(state, final)
    assert cluster.state(TOKEN) is expected
    assert cluster.state("another") is ClusterState.GONE, "never submitted"


@pytest.mark.parametrize("answer", [(500, {}), (200, "no JSON"), (200, {}), (401, {}), (200, STATELESS)])
@pytest.mark.parametrize("asked", ["info", "apps", "conf"])
def test_a_yarn_that_does_not_answer_as_expected_says_nothing(
    server: Server, connect: Callable[..., None], answer: tuple[int, object], asked: str
) -> None:
    cluster, otherwise = yarn(server, connect), resource_manager("FINISHED", "SUCCEEDED")
    server.answer = lambda path, query: answer if path.endswith(asked) else otherwise(path, query)
    assert cluster.state("another") is ClusterState.UNKNOWN
    assert (cluster.state(TOKEN) is ClusterState.UNKNOWN) == (asked == "apps"), (
        "of what is listed nothing else is asked"
    )


def test_a_yarn_that_is_started_again_does_not_know_yet_what_there_is(
    server: Server, connect: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager("FINISHED", "SUCCEEDED", manager="INITIALIZING")
    assert cluster.state("another") is ClusterState.UNKNOWN
    assert f"{server.address} is INITIALIZING, not ACTIVE" in caplog.text
    assert cluster.state(TOKEN) is ClusterState.GONE, "of this one it knows"


def test_what_a_yarn_has_listed_only_after_it_knew_all_counts(server: Server, connect: Callable[..., None]) -> None:
    cluster, knows = yarn(server, connect), resource_manager("RUNNING")
    lists = iter([None, {"app": [{"id": "application_1_0001", "state": "RUNNING"}]}])
    server.answer = lambda path, query: (200, {"apps": next(lists)}) if path.endswith("apps") else knows(path, query)
    assert cluster.state(TOKEN) is ClusterState.ACTIVE


def test_an_application_that_yarn_may_hide_is_gone_only_if_it_was_listed_before(
    server: Server, connect: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager("RUNNING", filters=True)
    assert cluster.state(TOKEN) is ClusterState.ACTIVE
    assert cluster.state("another") is ClusterState.UNKNOWN
    assert "yarn.webapp.filter-entity-list-by-user=true" in caplog.text
    forgetful = resource_manager("RUNNING", filters=True)
    server.answer = lambda path, query: (200, {"apps": None}) if path.endswith("apps") else forgetful(path, query)
    assert cluster.state(TOKEN) is ClusterState.GONE


def test_a_yarn_that_can_not_be_reached_says_nothing(connect: Callable[..., None]) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="http://127.0.0.1:9")
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    assert cluster.state(TOKEN) is ClusterState.UNKNOWN
    cluster.kill(TOKEN)


def test_what_yarn_says_of_an_application_is_told_with_its_page(server: Server, connect: Callable[..., None]) -> None:
    cluster, page = yarn(server, connect), f"{server.address}/cluster/app/application_1_0001"
    server.answer = resource_manager("RUNNING")
    assert cluster.account(TOKEN) == f"application_1_0001 is RUNNING, {page}"
    server.answer = resource_manager("FINISHED", "FAILED", "User application exited\n with status 1")
    said = "User application exited with status 1"
    assert cluster.account(TOKEN) == f"application_1_0001 is FINISHED with FAILED ({said}), {page}"
    assert cluster.account("another") == ""
    server.answer = lambda path, query: (500, {})
    assert cluster.account(TOKEN) == ""


def test_a_password_in_the_address_of_yarn_is_sent_and_shown_nowhere(
    server: Server, connect: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address=server.address.replace("//", "//me:hu%2Fsh@"))
    cluster = spark_submit.cluster_of("spark_default", {})
    assert isinstance(cluster, YarnCluster)
    server.answer = resource_manager("RUNNING", manager="STANDBY")
    told = [cluster.name, cluster.page("a"), cluster.account(TOKEN)]
    assert server.user == ("me", "hu/sh")
    assert cluster.state("another") is ClusterState.UNKNOWN
    server.answer = lambda path, query: (500, {})
    assert cluster.state(TOKEN) is ClusterState.UNKNOWN
    assert f"{server.address} is STANDBY" in caplog.text
    assert "500 Server Error" in caplog.text
    assert not [text for text in (*told, caplog.text) if "hu%2Fsh" in text or "hu/sh" in text]
    server.answer = resource_manager("RUNNING")
    cluster.kill(TOKEN)
    assert server.sent, "by the hook, which takes the address as it is"


def test_each_question_to_the_server_of_the_address_has_its_user(server: Server, connect: Callable[..., None]) -> None:
    """An answer has the address in other letters than the connection."""
    address = server.address.replace("//127.0.0.1", "//me:hush@LOCALHOST")
    connect("yarn", yarn_resourcemanager_webapp_address=address)
    cluster, knows = spark_submit.cluster_of("spark_default", {}), resource_manager("RUNNING")
    assert cluster is not None
    server.answer = lambda path, query: knows(path, query) if server.user == ("me", "hush") else (401, {})
    assert cluster.state("another") is ClusterState.GONE


def test_yarn_is_told_to_kill_what_has_the_tag(server: Server, connect: Callable[..., None]) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager("RUNNING")
    cluster.kill(TOKEN)
    assert server.sent == [("PUT", "/ws/v1/cluster/apps/application_1_0001/state", {"state": "KILLED"})]


@pytest.fixture
def kubernetes(server: Server, connect: Callable[..., None], provider: ModuleType) -> Cluster:
    from kubernetes import client

    configuration = client.Configuration(host=server.address)
    configuration.retries = 0
    provider.__dict__["get_kube_client"] = lambda: client.CoreV1Api(client.ApiClient(configuration))
    connect(f"k8s://{server.address}", namespace="streams")
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    return cluster


def api(*phases: str) -> Callable[[str, dict[str, list[str]]], tuple[int, object]]:
    """Answer as Kubernetes does, which has pods of these phases with our label."""
    pods = [{"metadata": {"name": f"driver-{n}"}, "status": {"phase": phase}} for n, phase in enumerate(phases)]

    def answer(path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        assert path == "/api/v1/namespaces/streams/pods"
        ours = query["labelSelector"] == [f"exactlyonce-token={TOKEN}"]
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods if ours else []}

    return answer


def container(state: dict[str, object]) -> dict[str, object]:
    return {"name": "driver", "image": "etl:7", "imageID": "", "ready": False, "restartCount": 0, "state": state}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["Pending"], ClusterState.ACTIVE),
        (["Running"], ClusterState.ACTIVE),
        (["Unknown"], ClusterState.UNKNOWN),
        (["Hibernated"], ClusterState.UNKNOWN),
        (["Failed", "Hibernated"], ClusterState.UNKNOWN),
        (["Failed"], ClusterState.GONE),
        (["Succeeded"], ClusterState.GONE),
        (["Failed", "Running"], ClusterState.ACTIVE),
        ([], ClusterState.GONE),
    ],
)
def test_kubernetes_is_asked_by_the_label(
    server: Server, kubernetes: Cluster, phases: list[str], expected: ClusterState
) -> None:
    server.answer = api(*phases)
    assert kubernetes.state(TOKEN) is expected


@pytest.mark.parametrize("answer", [(500, {}), (403, {}), (200, "no JSON")])
def test_a_kubernetes_that_does_not_answer_as_expected_says_nothing(
    server: Server, kubernetes: Cluster, answer: tuple[int, object]
) -> None:
    server.answer = lambda path, query: answer
    assert kubernetes.state(TOKEN) is ClusterState.UNKNOWN


def test_what_kubernetes_says_of_a_pod_is_told(server: Server, kubernetes: Cluster) -> None:
    server.answer = api("Failed", "Running")
    first, second = ("kubectl -n streams logs driver-0", "kubectl -n streams logs driver-1")
    assert kubernetes.account(TOKEN) == f"pod driver-0 is Failed, {first}; pod driver-1 is Running, {second}"
    server.answer = lambda path, query: (403, {})
    assert kubernetes.account(TOKEN) == ""


@pytest.mark.parametrize(
    ("metadata", "status", "said"),
    [
        (
            {},
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Failed (Evicted: The node was low on resource: memory.)",
        ),
        (
            {},
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ],
            },
            "Pending (Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.)",
        ),
        (
            {},
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [
                    container({"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "etl:7"'}})
                ],
            },
            'Pending (ImagePullBackOff: Back-off pulling image "etl:7")',
        ),
        (
            {},
            {
                "phase": "Failed",
                "containerStatuses": [container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})],
            },
            "Failed (OOMKilled: exit code 137)",
        ),
        ({"deletionTimestamp": "2026-11-25T10:00:00Z"}, {"phase": "Running"}, "Running, being deleted"),
    ],
)
def test_why_a_pod_does_not_run_is_told(
    server: Server, kubernetes: Cluster, metadata: dict[str, str], status: dict[str, object], said: str
) -> None:
    pod = {"metadata": {"name": "driver-0", **metadata}, "status": status}
    answer = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}
    server.answer = lambda path, query: (200, answer)
    assert kubernetes.account(TOKEN) == f"pod driver-0 is {said}, kubectl -n streams logs driver-0"


@pytest.mark.parametrize(
    ("allowed", "missing"),
    [
        ({"list", "delete"}, None),
        ({"list"}, "lets this task not delete pods in the namespace streams"),
        (set(), "lets this task not list and delete pods in the namespace streams"),
    ],
)
def test_a_task_that_could_not_look_its_driver_up_submits_none(
    server: Server, kubernetes: Cluster, allowed: set[str], missing: str | None
) -> None:
    def review(_: str, body: Any) -> tuple[int, object]:
        asked = body["spec"]["resourceAttributes"]
        assert (asked["resource"], asked["namespace"]) == ("pods", "streams")
        return 201, {**body, "status": {"allowed": asked["verb"] in allowed}}

    server.changed = review
    with pytest.raises(RefusedError, match=missing) if missing else nullcontext():
        kubernetes.check_access()
    assert {path for _, path, _ in server.sent} == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}


@pytest.mark.parametrize("answer", [(500, {}), (403, {}), (200, "no JSON")])
def test_a_kubernetes_that_does_not_say_what_is_allowed_stops_nobody(
    server: Server, kubernetes: Cluster, answer: tuple[int, object]
) -> None:
    server.changed = lambda path, body: answer
    kubernetes.check_access()
    assert server.sent


def test_kubernetes_is_told_to_delete_the_drivers_pod(server: Server, kubernetes: Cluster) -> None:
    server.answer = api("Running")
    kubernetes.kill(TOKEN)
    assert [(method, path) for method, path, _ in server.sent] == [
        ("DELETE", "/api/v1/namespaces/streams/pods/driver-0")
    ]
