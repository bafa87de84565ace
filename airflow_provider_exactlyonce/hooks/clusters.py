"""YARN and Kubernetes as managers of drivers, asked through the Spark provider's hook and its connection.

A driver is found by its start token, which is its tag in YARN and its pod's label in Kubernetes. The hook has no public
way to look an application up by its tag, so four of its private names are used: ``_connection``,
``_get_yarn_rm_base_url``, ``_resolved_yarn_rm_auth`` and ``_kill_yarn_application``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER, Cluster, ClusterState
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.storage.opening import is_local

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_provider_exactlyonce.control.home import Home

#: Label of a driver's pod.
LABEL: Final = "exactlyonce-token"

_ATTEMPTS: Final = "spark.yarn.maxAppAttempts"
_TIMEOUT_SECONDS: Final = 10
_DIAGNOSTICS_CHARACTERS: Final = 500
_YARN_ACTIVE: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})
_YARN_ENDED: Final = frozenset({"FINISHED", "FAILED", "KILLED"})
#: Whether lists leave out what the caller may not see, which matters where there are access rights.
_YARN_FILTER: Final = "yarn.webapp.filter-entity-list-by-user"
_YARN_ACLS: Final = "yarn.acl.enable"
_POD_ACTIVE: Final = frozenset({"Pending", "Running"})
_POD_ENDED: Final = frozenset({"Succeeded", "Failed"})
#: What is done here. Pods are created by spark-submit, whose user may be another one.
_POD_VERBS: Final = ("list", "delete")
_SECRET: Final = "spark.kubernetes.driver.secretKeyRef."
_UPLOAD: Final = "spark.kubernetes.file.upload.path"
_NAMESPACE: Final = "spark.kubernetes.namespace"

_log = logging.getLogger(__name__)


class YarnCluster(Cluster):
    """A YARN resource manager, asked through its REST interface.

    :param hook: made from the connection of type ``spark``, whose extra has ``yarn_resourcemanager_webapp_address``
    :raises RefusedError: when it has none
    """

    def __init__(self, hook: SparkSubmitHook) -> None:
        self._hook: Final = hook
        self._listed_tokens: Final[set[str]] = set()  # start tokens of applications that were listed
        try:
            given = str(hook._get_yarn_rm_base_url())
        except ValueError as error:
            raise RefusedError(
                f"connection {hook._conn_id} submits to YARN in cluster mode, and a driver that may still run has to "
                "be looked up: set yarn_resourcemanager_webapp_address in its extra, as in http://resourcemanager:8088"
            ) from error
        scheme, _, address = given.rpartition("//")
        # Answers, errors and pages have the address that was asked: a password in it would be in all of them.
        self._url: Final = f"{scheme}//{address.rpartition('@')[2]}"
        self._user: Final = _user_of(given)
        self._server: Final = _server_of(self._url)
        super().__init__(f"yarn at {self._url}", earlier_name="yarn")

    def state(self, token: str) -> ClusterState:
        """Look the application up by its tag; not with the hook, for which a state that it does not know has failed."""
        try:
            apps, manager = self._find(token)
            if not apps:
                self._check_tells_all(token, manager)
                apps, second_manager = self._find(token, manager)
                if second_manager != manager:
                    raise LookupError(f"{manager} is not the active one any more")
            states = {str(app["state"]) for app in apps}
        except Exception as error:
            _log.warning("the YARN resource manager does not say whether driver %s runs: %s", token, error)
            return ClusterState.UNKNOWN
        return _cluster_state(states, active=_YARN_ACTIVE, ended=_YARN_ENDED)

    def _check_tells_all(self, token: str, manager: str) -> None:
        """Check that an application which a resource manager does not list is not there.

        :param manager: the one that has listed; a standby answers these questions for itself
        :raises LookupError: when it may be there
        """
        state = self._ask(manager, "ws/v1/cluster/info")[0]["clusterInfo"]["haState"]
        if state != "ACTIVE":  # started again, it answers before it has read which applications there are
            raise LookupError(f"{manager} is {state}, not ACTIVE")
        if token in self._listed_tokens:
            return
        try:
            settings = (self._ask(manager, "conf", name=name)[0]["property"] for name in (_YARN_ACLS, _YARN_FILTER))
            is_filtered = all(str(setting["value"]).strip().lower() != "false" for setting in settings)
        except Exception as error:
            raise LookupError(
                f"{manager} lists none, and does not say whether it leaves out any ({_YARN_FILTER}): {error}"
            ) from error
        if is_filtered:
            raise LookupError(
                f"{manager} lists none, and leaves out what the caller may not see ({_YARN_FILTER}=true): let the user "
                f"of connection {self._hook._conn_id} view the driver's application, as who submits it or who is named "
                "in spark.ui.view.acls, or set that to false"
            )

    def account(self, token: str) -> str:
        """Return the application's id, state, YARN's words and its page, from which its logs are linked."""
        try:
            return "; ".join(map(self._account_of, self._find(token)[0]))
        except Exception as error:
            _log.warning("the YARN resource manager says nothing of driver %s: %s", token, error)
            return ""

    def _account_of(self, app: Mapping[str, Any]) -> str:
        state, final = str(app["state"]), str(app.get("finalStatus", ""))
        diagnostics = " ".join(str(app.get("diagnostics", "")).split())[:_DIAGNOSTICS_CHARACTERS]
        ended = f" with {final}" if state in _YARN_ENDED and final != state else ""
        reason = f" ({diagnostics})" if diagnostics else ""
        return f"{app['id']} is {state}{ended}{reason}, {self.page(app['id'])}"

    def page(self, application_id: str) -> str:
        """Return the address of the page from which the application's logs are linked, after its end too."""
        return f"{self._url}/cluster/app/{application_id}"

    def kill(self, token: str) -> None:
        """Kill the application with this tag."""
        try:
            for application in self._find(token)[0]:
                self._hook._kill_yarn_application(str(application["id"]))
        except Exception as error:
            _log.warning("driver %s could not be killed on YARN: %s", token, error)

    def _find(self, token: str, manager: str | None = None) -> tuple[list[dict[str, Any]], str]:
        """Return the applications with this tag, and the address of the resource manager that has listed them."""
        body, manager = self._ask(manager or self._url, "ws/v1/cluster/apps", applicationTags=token)
        apps = list((body["apps"] or {}).get("app", ()))
        if apps:
            self._listed_tokens.add(token)
        return apps, manager

    def _ask(self, manager: str, path: str, **query: str) -> tuple[dict[str, Any], str]:
        """Return an answer, and the address of who has given it: a standby redirects to the active one."""
        import requests

        answer = requests.get(
            f"{manager}/{path}",
            params=query,
            headers={"Accept": "application/json"},
            auth=self._hook._resolved_yarn_rm_auth or (self._user if _server_of(manager) == self._server else None),
            timeout=_TIMEOUT_SECONDS,
        )
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body, answer.url.partition(f"/{path}")[0]


class KubernetesCluster(Cluster):
    """A Kubernetes cluster, asked through the Kubernetes provider's client.

    :param master: Spark's master, ``k8s://…``
    :param namespace: of the driver's pods
    """

    def __init__(self, master: str, namespace: str) -> None:
        super().__init__(f"{master}, namespace {namespace}", earlier_name=master)
        self.namespace: Final = namespace

    def check_access(self) -> None:
        """Ask whether we may list and delete pods: a driver that can't be looked up would be waited for, for ever."""
        try:
            refused = [verb for verb in _POD_VERBS if not self._may(verb)]
        except Exception as error:
            _log.warning("Kubernetes does not say whether drivers can be looked up: %s", error)
            return
        if refused:
            raise RefusedError(
                f"Kubernetes lets this task not {' and '.join(refused)} pods in the namespace {self.namespace}, so "
                "its driver could not be looked up or ended: give its user the Role of `exactlyonce help kubernetes`"
            )

    def _may(self, verb: str) -> bool:
        from kubernetes import client

        pods = client.V1ResourceAttributes(namespace=self.namespace, resource="pods", verb=verb)
        review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=pods))
        authorization = client.AuthorizationV1Api(self._client().api_client)
        answer = authorization.create_self_subject_access_review(review, _request_timeout=_TIMEOUT_SECONDS)
        return bool(answer.status.allowed)

    def state(self, token: str) -> ClusterState:
        """Look the driver's pod up by its label."""
        try:
            phases = {pod.status.phase for pod in self._find(self._client(), token)}
        except Exception as error:
            _log.warning("Kubernetes does not say whether driver %s runs: %s", token, error)
            return ClusterState.UNKNOWN
        return _cluster_state(phases, active=_POD_ACTIVE, ended=_POD_ENDED)

    def account(self, token: str) -> str:
        """Return the pod's name, phase, Kubernetes' words, and how its output is read."""
        try:
            return "; ".join(map(self._account_of, self._find(self._client(), token)))
        except Exception as error:
            _log.warning("Kubernetes says nothing of driver %s: %s", token, error)
            return ""

    def _account_of(self, pod: Any) -> str:
        status, name = pod.status, pod.metadata.name
        phase = f"{status.phase}, being deleted" if pod.metadata.deletion_timestamp else status.phase
        reasons = [(status.reason, status.message)]  # such as Evicted
        reasons += [
            (condition.reason, condition.message)
            for condition in status.conditions or ()
            if condition.status == "False" and condition.message
        ]
        for container in status.container_statuses or ():
            waiting, ended = container.state.waiting, container.state.terminated
            if waiting is not None:  # such as ImagePullBackOff
                reasons.append((waiting.reason, waiting.message))
            if ended is not None:
                reasons.append((ended.reason, ended.message or f"exit code {ended.exit_code}"))
        messages = dict.fromkeys(": ".join(filter(None, reason)) for reason in reasons if any(reason))
        diagnostics = " ".join("; ".join(messages).split())[:_DIAGNOSTICS_CHARACTERS]
        output = f", kubectl -n {self.namespace} logs {name}"
        return f"pod {name} is {phase}{f' ({diagnostics})' if diagnostics else ''}{output}"

    def kill(self, token: str) -> None:
        """Delete the driver's pod; its executors go with it."""
        try:
            client = self._client()
            for pod in self._find(client, token):
                client.delete_namespaced_pod(pod.metadata.name, self.namespace, _request_timeout=_TIMEOUT_SECONDS)
        except Exception as error:
            _log.warning("driver %s could not be killed on Kubernetes: %s", token, error)

    def _client(self) -> Any:
        from airflow.providers.apache.spark.hooks import spark_submit

        return spark_submit.kube_client.get_kube_client()  # type: ignore[attr-defined]

    def _find(self, client: Any, token: str) -> list[Any]:
        selector = f"{LABEL}={token}"
        pods = client.list_namespaced_pod(self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_SECONDS)
        return list(pods.items)


def _user_of(url: str) -> tuple[str, str] | None:
    """Return the user and the password that an address has in front of its host."""
    from requests.utils import get_auth_from_url

    user = get_auth_from_url(url)
    return user if any(user) else None


def _server_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _cluster_state(states: set[str], *, active: frozenset[str], ended: frozenset[str]) -> ClusterState:
    if states & active:
        return ClusterState.ACTIVE
    return ClusterState.GONE if states <= ended else ClusterState.UNKNOWN


def cluster_of(hook: SparkSubmitHook) -> Cluster | None:
    """Return the manager that runs a connection's drivers, None when they run where the task does.

    :raises RefusedError: when a driver of this connection could not be found again
    """
    connection = hook._connection
    if connection["deploy_mode"] != "cluster":
        return None
    master = str(connection["master"])
    if master.startswith("k8s"):
        return KubernetesCluster(master, connection["namespace"] or "default")
    if master.startswith("yarn"):
        return YarnCluster(hook)
    raise RefusedError(
        f"connection {hook._conn_id} has deploy-mode cluster with master {master}, where Spark runs no Python "
        "applications: set deploy-mode to client"
    )


def is_image_complete(cluster: Cluster | None, conf: Mapping[str, str]) -> bool:
    """Whether a driver has what its image has, and nothing else: a pod gets no file of the task's host."""
    return isinstance(cluster, KubernetesCluster) and _UPLOAD not in conf


def secrets_to_write(
    cluster: Cluster, conf: Mapping[str, Any], secrets: Mapping[str, str], home: Home
) -> dict[str, str]:
    """Return which secrets of a driver the task writes to files: those that the driver gets from no Secret of its own.

    :param conf: in which Spark's ``spark.kubernetes.driver.secretKeyRef.VARIABLE=SECRET:KEY`` names a Secret
    :param secrets: by the driver's variable
    :raises RefusedError: when a pod could find neither a Secret nor the file, since its home is not mounted
    """
    if not isinstance(cluster, KubernetesCluster):
        return dict(secrets)
    file_secrets = {name: text for name, text in secrets.items() if f"{_SECRET}{name}" not in conf}
    if file_secrets and not is_local(home.path):
        missing = ", ".join(f"{_SECRET}{name}" for name in file_secrets)
        raise RefusedError(
            f"{home} is not mounted, so a driver in a pod takes what is secret from a Secret of its namespace: name "
            f"it in conf, as SECRET:KEY, by {missing} (`exactlyonce help kubernetes`)"
        )
    return file_secrets


def settings_for(cluster: Cluster, conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings by which a driver gets its environment and is found by its start token.

    :param conf: what is set already
    :param environment: the driver's variables; nothing secret, everybody can read a command line
    :raises SettingRefusedError: when YARN would start a driver again by itself
    """
    attempts = conf.get(_ATTEMPTS, "1")
    if attempts != "1":
        reason = "YARN would start a second driver with the first's identity"
        raise SettingRefusedError(_ATTEMPTS, attempts, "1", reason)
    python = conf.get("spark.executorEnv.PYTHONPATH")
    variables = {**environment, **({"PYTHONPATH": python} if python else {})}
    if isinstance(cluster, KubernetesCluster):
        prefix = "spark.kubernetes.driverEnv."
        identity = {
            _NAMESPACE: cluster.namespace,  # where the driver is looked up; spark-defaults.conf may have another
            f"spark.kubernetes.driver.label.{LABEL}": TOKEN_PLACEHOLDER,
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
    else:
        prefix = "spark.yarn.appMasterEnv."
        tags = ",".join(filter(None, [conf.get("spark.yarn.tags"), TOKEN_PLACEHOLDER]))
        identity = {"spark.yarn.tags": tags, "spark.yarn.submit.waitAppCompletion": "false", _ATTEMPTS: "1"}
    return {**{f"{prefix}{name}": value for name, value in variables.items()}, **identity}
