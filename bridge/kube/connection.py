"""JSON over the official client: one call, one time-out, one of three outcomes (an object, `ApiError`, `NoAnswer`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from bridge.model.errors import CallFailed, Invalid

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_GONE = 410


class ApiError(CallFailed):
    """The apiserver answered with a Status. `causes` are its machine-readable reasons."""

    def __init__(self, status: int, body: Json) -> None:
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.message = str(body.get("message") or "no message")
        details = body.get("details") or {}
        self.causes: tuple[Json, ...] = tuple(details.get("causes") or ())
        super().__init__(f"apiserver answers {status} {self.reason}: {self.message}")

    @property
    def gone(self) -> bool:
        """The version to watch from is too old: list again."""
        return self.status == _GONE


class NoAnswer(CallFailed):
    """No whole answer came in time. A write may or may not have happened."""


class Api(Protocol):
    """What the rest of the bridge needs of an apiserver."""

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json: ...

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Json]: ...


class Connection:
    """One apiserver, one identity. Safe to use from many threads. `timeout_s` bounds every call but watches."""

    def __init__(self, configuration: client.Configuration, *, timeout_s: float) -> None:
        # A retry is the caller's decision: made here, it would hide the 429 of a budget and age a read.
        configuration.retries = False
        configuration.connection_pool_maxsize = 64
        self._client = client.ApiClient(configuration)
        self._client.user_agent = "slurm-kube-bridge"
        self._timeout_s = timeout_s

    @classmethod
    def open(cls, kubeconfig: Path | None, *, timeout_s: float) -> Connection:
        """Connect as `kubeconfig` says, or as the pod's own service account. `Invalid` when there is neither."""
        # Not Configuration(): its constructor hook copies a process-wide default that other code may have set.
        configuration = type.__call__(client.Configuration)
        try:
            if kubeconfig is not None:
                load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
                )
            else:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError) as error:
            wanted = kubeconfig or "the service account of a pod"
            raise Invalid(f"cannot reach Kubernetes by {wanted}: {error}; set BRIDGE_KUBECONFIG") from error
        return cls(configuration, timeout_s=timeout_s)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """One request, one JSON object. `ApiError` for every status but 2xx, `NoAnswer` for everything else."""
        try:
            response = self._request(method, path, query or {}, body, content_type, read_s=self._timeout_s)
            return _object(response.status, response.data)
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise NoAnswer(f"{method} {path}: {error}") from error

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Iterator[Json]:
        """Events of a watch until the server ends it in good order; `NoAnswer` when it does not, or is silent."""
        whole = False
        try:
            response = self._request("GET", path, {**query, "watch": "1"}, None, "", read_s=silence_s)
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise NoAnswer(f"watch {path}: {error}") from error
        try:
            if response.status != 200:
                _object(response.status, response.data)
            for line in _lines(response):
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code") or 500), event["object"])
                yield event
            whole = True
        except (urllib3.exceptions.HTTPError, OSError, orjson.JSONDecodeError) as error:
            raise NoAnswer(f"watch {path}: {error}") from error
        finally:
            if not whole:
                response.close()  # a half-read socket is of no further use
            response.release_conn()

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | Sequence[Json] | None,
        content_type: str,
        *,
        read_s: float,
    ) -> urllib3.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": self._client.user_agent}
        if body is not None:
            headers["Content-Type"] = content_type
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        timeout = (self._timeout_s, read_s)
        answer = self._client.call_api(method, url, header_params=headers, body=body, _request_timeout=timeout)
        response: urllib3.HTTPResponse = answer.response
        return response


def _object(status: int, data: bytes) -> Json:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if 200 <= status < 300:
            raise NoAnswer(f"status {status} with a body that is no JSON: {error}") from error
        body = {"message": data[:200].decode(errors="replace")}
    if not isinstance(body, dict):
        raise NoAnswer(f"status {status} with a JSON body that is no object")
    if not 200 <= status < 300:
        raise ApiError(status, body)
    return body


def _lines(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(64 * 1024):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
