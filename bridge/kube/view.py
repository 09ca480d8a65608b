"""A live copy of one list of objects that knows how old it is.

A watch that has died looks exactly like one on which nothing happens. So every watch is short: the apiserver ends it in
good order after `watch_s`, which shows that all it had to say until then has been heard, and the next one resumes from
there. (Bookmarks do not serve: none come while nothing changes.) A view that has heard nothing for longer is old, and
says so; and once in a while it lists everything again, should an event ever have been lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import structlog

from bridge.kube.connection import Api, ApiError, Json, NoAnswer
from bridge.model.errors import CallFailed

_T = TypeVar("_T")
_PAGE_SIZE = 1000
_RETRY_S = 0.5

log = structlog.get_logger(__name__)


class View(Generic[_T]):
    """Keeps ``{key: translate(object)}`` of all objects at `path`; key is ``namespace/name`` or ``name``.

    `translate` returns what is worth keeping of an object, or None to leave it out. `on_change(key, before, after)` is
    called from the view's thread, only when what is kept has changed; None stands for absent. `watch_s` is the length
    of one watch, `relist_s` the longest time between two full lists.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        translate: Callable[[Json], _T | None],
        *,
        monotonic_s: Callable[[], float],
        on_change: Callable[[str, _T | None, _T | None], None] | None = None,
        query: Mapping[str, str] | None = None,
        watch_s: int = 2,
        relist_s: float = 60,
    ) -> None:
        self._api = api
        self._path = path
        self._translate = translate
        self._on_change = on_change or (lambda _key, _before, _after: None)
        self._query = dict(query or {})
        self._watch_s = watch_s
        self._relist_s = relist_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._items: dict[str, _T] = {}
        self._heard_at_s: float | None = None
        self._problem = "not listed yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"view {path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop following. The thread ends with the present watch; nothing is reported from now on."""
        self._stop.set()

    def items(self) -> dict[str, _T]:
        with self._lock:
            return dict(self._items)

    def age_s(self) -> float:
        """Seconds since the apiserver last showed that this view is complete; infinite before the first list."""
        with self._lock:
            return float("inf") if self._heard_at_s is None else self._monotonic_s() - self._heard_at_s

    @property
    def problem(self) -> str:
        """What went wrong last, or empty."""
        with self._lock:
            return self._problem

    @property
    def path(self) -> str:
        return self._path

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except CallFailed as error:
                self._fail(str(error))
            except Exception as error:  # a thread that dies silently would leave a view that only grows old
                log.exception("view failed", path=self._path)
                self._fail(repr(error))
            self._stop.wait(_RETRY_S)

    def _fail(self, problem: str) -> None:
        with self._lock:
            known, self._problem = self._problem, problem
        if problem != known and not self._stop.is_set():
            log.warning("view interrupted", path=self._path, problem=problem)

    def _follow(self) -> None:
        """List, then watch on from there, until it is time to list again or the server has forgotten where we were."""
        version = self._list()
        listed_at_s = self._monotonic_s()
        while not self._stop.is_set() and self._monotonic_s() - listed_at_s < self._relist_s:
            try:
                version = self._watch(version)
            except ApiError as error:
                if not error.gone:
                    raise
                return
            except NoAnswer as error:
                self._fail(str(error))
                self._stop.wait(_RETRY_S)

    def _list(self) -> str:
        began_at_s = self._monotonic_s()
        items: dict[str, _T] = {}
        page: Json = {}
        while True:
            query = {**self._query, "limit": str(_PAGE_SIZE)}
            if token := (page.get("metadata") or {}).get("continue"):
                query["continue"] = token
            page = self._api.call("GET", self._path, query=query)
            for item in page.get("items") or ():
                kept = self._translate(item)
                if kept is not None:
                    items[_key(item)] = kept
            if not (page["metadata"].get("continue")):
                break
        before = self.items()
        self._note({key: items.get(key) for key in before.keys() | items.keys()}, heard_at_s=began_at_s)
        return str(page["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_s),
        }
        for event in self._api.watch(self._path, query, silence_s=self._watch_s + 1):
            if self._stop.is_set():
                break
            item = event["object"]
            version = str(item["metadata"]["resourceVersion"])
            kind = event["type"]
            if kind != "BOOKMARK":  # which tells only of a version to resume from
                kept = None if kind == "DELETED" else self._translate(item)
                self._note({_key(item): kept}, heard_at_s=self._monotonic_s())
        self._note({}, heard_at_s=self._monotonic_s())
        return version

    def _note(self, news: Mapping[str, _T | None], *, heard_at_s: float) -> None:
        changes = []
        with self._lock:
            for key, after in news.items():
                before = self._items.get(key)
                if after is None:
                    self._items.pop(key, None)
                else:
                    self._items[key] = after
                if before != after:
                    changes.append((key, before, after))
            self._heard_at_s = heard_at_s
            self._problem = ""
        for key, before, after in changes:
            if not self._stop.is_set():
                self._on_change(key, before, after)


def _key(item: Json) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
