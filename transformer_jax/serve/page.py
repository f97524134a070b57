"""The page at /: its files, with headers that let it load nothing else."""

import pathlib

from fastapi import FastAPI
from fastapi.responses import Response

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'"


def add_routes(app: FastAPI) -> None:
    """Add the page and its parts."""
    folder = pathlib.Path(__file__).parent
    for place, (name, kind) in FILES.items():
        content = (folder / name).read_bytes()
        app.get(place, include_in_schema=False)(_sender(content, kind))


def _sender(content: bytes, kind: str):
    async def send() -> Response:
        headers = {
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        }
        return Response(content, media_type=kind, headers=headers)

    return send
