"""The API's reference as one page of plain HTML.

FastAPI's own pages load scripts from elsewhere into the page where an admin would type a token, and show nothing on a
site without internet. This one has no script at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; } pre { background: #8881; padding: .7rem; overflow-x: auto; }
section { border-top: 1px solid #8886; } table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; }
:root { color-scheme: light dark; }
"""


def render(schema: dict[str, Any]) -> str:
    """The page for an OpenAPI `schema`."""
    info = schema["info"]
    body = "\n".join(
        _operation(method.upper(), path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} REST API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(info['title'])} REST API</h1><p>{escape(info['summary'])}</p>"
        f'<p>Machine-readable: <a href="/openapi.json">/openapi.json</a>. Errors are '
        f"<code>application/problem+json</code>.</p>{body}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in operation.get("description", "").split("\n\n") if text)
    rows = "".join(_rows(operation))
    name = escape(operation["operationId"])
    return (
        f'<section id="{name}"><h2><code>{method} {escape(path)}</code></h2>'
        f"<p><strong>{escape(operation.get('summary', ''))}</strong></p>{paragraphs}<table>{rows}</table></section>"
    )


def _rows(operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        yield _row(parameter["in"], parameter["name"], parameter.get("description", ""))
    for media in operation.get("requestBody", {}).get("content", {}).values():
        yield _row("body", media["schema"].get("$ref", "").rsplit("/", 1)[-1], "")
    for status, response in operation["responses"].items():
        yield _row("answer", status, response["description"])


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
