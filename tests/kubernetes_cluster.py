"""A real API server of Kubernetes on a real etcd, and a node that runs pods as processes of this host.

Both servers are built from their published sources, once: ``python -m tests.kubernetes_cluster``, ten minutes of Go.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import yaml

from airflow_provider_exactlyonce.jars.cache import cache_directory, exclusive
from airflow_provider_exactlyonce.jars.java import java_executable
from airflow_provider_exactlyonce.jars.spark import pyspark_jars
from tests.hadoop_cluster import Server
from tests.ports import free_ports

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = Path(__file__).with_name("kubernetes")
MANIFESTS: Final = ROOT / "docs" / "kubernetes"
VERSION: Final = "v1.36.3"  # as in kubernetes/go.mod
SERVERS: Final = ("etcd", "kube-apiserver")
NAMESPACE: Final = "streams"
#: Users as (service account, namespace): of Airflow's workers, of drivers, of executors.
WORKER: Final = ("airflow-worker", "airflow")
DRIVER: Final = ("spark-driver", NAMESPACE)
EXECUTOR: Final = ("spark-executor", NAMESPACE)
IMAGE: Final = "registry.example.com/shop:1"
_ADMIN: Final = "token-of-the-administrator"
#: Note who asked for what, and nothing of an answer.
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
#: What a container sees of its own: names, mounts and processes. Its commands find the image in this host's files.
_CONTAINER: Final = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec")


def binaries() -> Path:
    """Return the folder of the servers, which need not be there."""
    return cache_directory() / "tests" / f"kubernetes-{VERSION}"


def build() -> None:
    """Build the servers, unless they are there."""
    folder = binaries()
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={VERSION}"
    with exclusive(folder.with_name("lock"), print):
        for name in SERVERS:
            if not (folder / name).exists():
                command = ["go", "build", "-ldflags", flags, "-o", str(folder / f"{name}.new"), f"./{name}"]
                subprocess.run(command, cwd=SOURCES, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
                (folder / f"{name}.new").rename(folder / name)
    print(folder)


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of the documentation."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def documented_conf() -> dict[str, str]:
    """Return the Spark settings of the documented task."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    [text] = re.findall(r"^ +conf=(\{.*?^ +\})", page, re.DOTALL | re.MULTILINE)
    return dict(ast.literal_eval(text))


@dataclass
class ApiServer:
    """An API server that knows roles.

    :param address: its URL
    :param certificate: of its authority
    :param audit: its record of who has asked for what
    :param folder: for files of its clients
    """

    address: str
    certificate: Path
    audit: Path
    folder: Path

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create objects as a server that is strict takes them: an unknown field is an error."""
        paths = {
            "Namespace": "/api/v1/namespaces",
            "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
            "Secret": "/api/v1/namespaces/{}/secrets",
            "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
            "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
            "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
        }
        for given in objects:
            path = paths[given["kind"]].format(given["metadata"].get("namespace"))
            answer = self.ask("POST", f"{path}?fieldValidation=Strict", given)
            assert answer.status_code == 201, answer.text

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> requests.Response:
        """Ask it as somebody who may do everything."""
        return requests.request(
            method,
            f"{self.address}{path}",
            data=None if body is None else json.dumps(body),
            headers={"Authorization": f"Bearer {_ADMIN}", "Content-Type": kind},
            verify=str(self.certificate),
            timeout=60,
        )

    def token_of(self, account: str, namespace: str) -> str:
        """Return a token of a service account, as a pod gets it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.ask("POST", path, {"spec": {"expirationSeconds": 36_000}})
        answer.raise_for_status()
        return str(answer.json()["status"]["token"])

    def kubeconfig_of(self, account: str, namespace: str) -> Path:
        """Return a file by which a client is a service account."""
        path = self.folder / f"{account}.kubeconfig"
        named = {
            "clusters": [
                {"name": "here", "cluster": {"server": self.address, "certificate-authority": str(self.certificate)}}
            ],
            "users": [{"name": account, "user": {"token": self.token_of(account, namespace)}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": account}}],
        }
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "here", **named}))
        return path

    def asked(self, account: str, namespace: str) -> set[tuple[str, str, str]]:
        """Return which rights an account has used: (group, resource, verb)."""
        used = set()
        user = f"system:serviceaccount:{namespace}:{account}"
        for event in map(json.loads, self.audit.read_text().splitlines()):
            if event["user"]["username"] == user and (what := event.get("objectRef")):
                # What is patched and was not there is created, for which another right is asked.
                verbs = {event["verb"], *(["create"] if event["responseStatus"]["code"] == 201 else ())}
                resource = "/".join(filter(None, [what["resource"], what.get("subresource")]))
                used |= {(what.get("apiGroup", ""), resource, verb) for verb in verbs}
        return used


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """Run an API server on a store of its own."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    store, peers, port = free_ports(3)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "accounts.key").write_bytes(key)
    (folder / "audit.yaml").write_text(json.dumps(_AUDIT))
    (folder / "tokens.csv").write_text(f"{_ADMIN},admin,admin,system:masters\n")
    certificate = folder / "certificates" / "apiserver.crt"
    server = ApiServer(f"https://127.0.0.1:{port}", certificate, folder / "audit.log", folder)
    urls = [f"http://127.0.0.1:{number}" for number in (store, peers)]
    commands = {
        "etcd": [
            *(f"--data-dir={folder}/etcd-data", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={urls[0]}", f"--advertise-client-urls={urls[0]}"),
            *(f"--listen-peer-urls={urls[1]}", f"--initial-advertise-peer-urls={urls[1]}"),
            f"--initial-cluster=default={urls[1]}",
        ],
        "kube-apiserver": [
            *(f"--etcd-servers={urls[0]}", f"--secure-port={port}", "--bind-address=127.0.0.1"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", f"--cert-dir={certificate.parent}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"),
            *(f"--service-account-key-file={folder}/accounts.key", f"--token-auth-file={folder}/tokens.csv"),
            f"--service-account-signing-key-file={folder}/accounts.key",
            *(f"--audit-policy-file={folder}/audit.yaml", f"--audit-log-path={server.audit}"),
            *("--service-cluster-ip-range=10.0.0.0/24", "--profiling=false"),
        ],
    }
    servers = []
    try:
        for name, arguments in commands.items():
            servers.append(Server(folder / name, [str(binaries() / name), *arguments]))
        servers[-1].await_up(lambda: _is_ready(server))
        yield server
    finally:
        for running in reversed(servers):
            running.kill()


def _is_ready(server: ApiServer) -> bool:
    try:
        return server.certificate.exists() and server.ask("GET", "/readyz").status_code == 200
    except requests.ConnectionError:
        return False


class Pod:
    """A pod whose container runs, as a process of this host."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], address: str) -> None:
        self.folder, self.process, self.address = folder, process, address

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")


class Node:
    """Does for the pods of a namespace what a kubelet does, without containers.

    A pod is a process that has a host name, mounts and processes of its own. The image is this environment, and the
    documented entry point in its place.
    """

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.pods: dict[str, Pod] = {}
        self._evicted: set[str] = set()
        self._addresses = (f"127.0.{7 + number // 200}.{2 + number % 200}" for number in itertools.count())
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def __enter__(self) -> Node:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait()

    def evict(self, name: str) -> None:
        """End a pod as a kubelet does whose memory runs short."""
        self._evicted.add(name)  # of whose end nothing else is reported
        self.pods[name].process.kill()
        self.pods[name].process.wait()
        message = "The node was low on resource: memory."
        self._report(name, {"phase": "Failed", "reason": "Evicted", "message": message})

    def kill(self, name: str) -> None:
        """Kill a pod's processes."""
        self.pods[name].process.kill()

    def _run(self) -> None:
        while not self._stopped.wait(0.25):
            try:
                for pod in self._server.ask("GET", _path("")).json()["items"]:
                    self._look_at(pod)
            except BaseException as error:
                self.failure = error
                raise

    def _look_at(self, pod: dict[str, Any]) -> None:
        name, running = pod["metadata"]["name"], self.pods.get(pod["metadata"]["name"])
        if "deletionTimestamp" in pod["metadata"]:
            if running is not None:
                running.process.kill()
                running.process.wait()
            self._server.ask("DELETE", f"{_path(name)}?gracePeriodSeconds=0")
        elif pod["status"]["phase"] == "Pending" and running is None:
            if not pod["spec"].get("nodeName"):
                binding = {"target": {"kind": "Node", "name": "node"}, "metadata": {"name": name}}
                self._server.ask("POST", f"{_path(name)}/binding", {"apiVersion": "v1", "kind": "Binding", **binding})
            [container] = pod["spec"]["containers"]
            if container["image"] != IMAGE:
                message = f'Back-off pulling image "{container["image"]}"'
                self._tell(pod, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": message}})
            elif (start := self._start(pod, container)) is not None:
                self.pods[name] = start
                self._tell(pod, "Running", {"running": {"startedAt": _now()}}, start.address)
        elif (
            running is not None
            and running.process.poll() is not None
            and name not in self._evicted
            and pod["status"]["phase"] == "Running"
        ):
            code = running.process.returncode
            code = code if code >= 0 else 128 - code
            reason = "Error" if code else "Completed"
            ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now()}}
            self._tell(pod, "Failed" if code else "Succeeded", ended, running.address)

    def _tell(self, pod: dict[str, Any], phase: str, state: dict[str, Any], address: str | None = None) -> None:
        [container] = pod["spec"]["containers"]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": phase == "Running",
            "state": state,
        }
        where: dict[str, Any] = {"podIP": address, "podIPs": [{"ip": address}]} if address else {}
        where["conditions"] = [{"type": "Ready", "status": str(phase == "Running")}]
        self._report(pod["metadata"]["name"], {"phase": phase, "containerStatuses": [status], **where})

    def _report(self, name: str, status: dict[str, Any]) -> None:
        answer = self._server.ask("PATCH", f"{_path(name)}/status", {"status": status}, "application/merge-patch+json")
        answer.raise_for_status()

    def _start(self, pod: dict[str, Any], container: dict[str, Any]) -> Pod | None:
        """Start the container, or return None while something is not there that it mounts."""
        name, address = pod["metadata"]["name"], next(self._addresses)
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mounts = {"/opt/entrypoint.sh": MANIFESTS / "entrypoint.sh", "/etc/hosts": folder / "hosts"}
        services = self._server.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/services").json()["items"]
        if name.endswith("-driver") and not any(_is_of(service, pod) for service in services):
            return None
        host = name[-63:].lstrip("-")  # the longest that a kernel takes
        hosts = ["127.0.0.1 localhost", f"{address} {host}"]
        for service in services:
            owner = service["metadata"]["ownerReferences"][0]["name"]
            at = address if owner == name else self.pods[owner].address if owner in self.pods else None
            hosts += [f"{at} {service['metadata']['name']}.{NAMESPACE}.svc"] if at else []
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            place = self._volume(volumes[mount["name"]], folder, pod)
            if place is None:
                return None
            mounts[mount["mountPath"]] = place
        lines = [
            *(f"mount -t tmpfs none {folder}" for folder in ("/opt", "/run")),
            f"echo {host} > /proc/sys/kernel/hostname",
            *(
                f"mkdir -p {Path(at).parent if place.is_file() else at}; "
                + (f"touch {at}; " if place.is_file() else "")
                + f"mount --bind {place} {at}"
                for at, place in mounts.items()
            ),
            'cd /opt; exec bash /opt/entrypoint.sh "$@"',
        ]
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                [*_CONTAINER, "\n".join(lines), "sh", *container["args"]],
                env={**_environment(folder), **dict(self._variables(pod, container, address))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return Pod(folder, process, address)

    def _variables(self, pod: dict[str, Any], container: dict[str, Any], address: str) -> Iterator[tuple[str, str]]:
        fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            if "fieldRef" in source:
                yield variable["name"], fields.get(source["fieldRef"]["fieldPath"], "")
            elif "secretKeyRef" in source:
                named = source["secretKeyRef"]
                secret = self._server.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{named['name']}").json()
                yield variable["name"], base64.b64decode(secret["data"][named["key"]]).decode()
            else:
                yield variable["name"], variable.get("value", "")

    def _volume(self, volume: dict[str, Any], folder: Path, pod: dict[str, Any]) -> Path | None:
        place = folder / "volumes" / str(volume["name"])
        place.mkdir(parents=True)
        files: dict[str, str] = {}
        if "configMap" in volume:
            path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{volume['configMap']['name']}"
            answer = self._server.ask("GET", path)
            if answer.status_code == 404:
                return None
            files = answer.json().get("data", {})
        elif "projected" in volume:
            account = pod["spec"]["serviceAccountName"]
            files = {"token": self._server.token_of(account, NAMESPACE), "namespace": NAMESPACE}
            files["ca.crt"] = self._server.certificate.read_text()
        else:
            assert "emptyDir" in volume, volume
        for name, text in files.items():
            (place / name).write_text(text)
        return place


def _environment(folder: Path) -> Mapping[str, str]:
    """Return what the documented image has in its environment, by this host's paths."""
    return {
        "HOME": str(folder),
        "JAVA_HOME": str(java_executable().resolve().parents[1]),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), *os.defpath.split(os.pathsep)]),
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(pyspark_jars().parent),
        "XDG_CACHE_HOME": str(cache_directory().parent),
    }


def _is_of(service: dict[str, Any], pod: dict[str, Any]) -> bool:
    owners = service["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == pod["metadata"]["uid"] for owner in owners)


def _path(pod: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give the session's API server, with the documented rights."""
    if missing := [name for name in SERVERS if not (binaries() / name).exists()]:
        pytest.skip(f"{' and '.join(missing)} are not built: make kubernetes-servers")
    with api_server(tmp_path_factory.mktemp("kubernetes")) as server:
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WORKER[1]}})
        account = {"name": WORKER[0], "namespace": WORKER[1]}
        server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, *manifests("rights.yaml"))
        yield server


if __name__ == "__main__":
    build()
