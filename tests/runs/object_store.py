"""A Google Cloud Storage of this machine: as much of its JSON API as a run uses.

    python object_store.py        prints its address; objects are kept in memory

Objects have generations, and conditions on them hold: TensorStore relies on both.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

OBJECTS: dict[str, tuple[int, bytes]] = {}  # name → (generation, content)
PARTS: dict[str, bytes] = {}  # of uploads that have not ended
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body leave together, and nobody waits to acknowledge

    def handle_any(self):
        url = urlsplit(self.path)
        self.asked = {k: v[-1] for k, v in parse_qs(url.query).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = re.fullmatch(
            r"(?:/(upload|download))?/storage/v1/b/(\w+)(?:/o(?:/(.+))?)?", url.path
        )
        place, bucket, name = found.groups()
        with LOCK:
            if place == "upload":
                self.upload()
            elif name and (both := re.fullmatch(r"(.+)/moveTo/o/(.+)", name)):
                self.move(*map(unquote, both.groups()))
            elif name:
                self.serve(unquote(name), place == "download")
            elif url.path.endswith("/o"):
                self.list_names()
            else:
                self.answer(200, {"kind": "storage#bucket", "name": bucket})

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def upload(self):
        if "upload_id" in self.asked:  # a part of a resumable one
            name = self.asked["name"]
            PARTS[name] = PARTS.get(name, b"") + self.body
            if self.headers["Content-Range"].endswith("*"):
                last = len(PARTS[name]) - 1
                return self.answer(308, b"", Range=f"bytes=0-{last}")
            self.put(name, PARTS.pop(name))
        elif self.asked["uploadType"] == "resumable":
            name = self.asked.get("name") or json.loads(self.body)["name"]
            address = f"http://{self.headers['Host']}/upload/storage/v1/b/bucket/o"
            location = f"{address}?{urlencode({'name': name, 'upload_id': 1})}"
            self.answer(200, b"", Location=location)
        elif self.asked["uploadType"] == "multipart":
            boundary = (
                b"--"
                + self.headers["Content-Type"]
                .split("boundary=")[1]
                .strip("'\"")
                .encode()
            )
            _, about, part, _ = self.body.split(boundary)
            name = json.loads(about.split(b"\n\n", 1)[1])["name"]
            self.put(name, part.split(b"\n\n", 1)[1].removesuffix(b"\n"))
        else:
            self.put(self.asked["name"], self.body)

    def move(self, source, target):
        if source not in OBJECTS:  # such as a folder
            return self.answer(404, {"error": {"code": 404, "message": source}})
        self.put(target, OBJECTS.pop(source)[1])

    def put(self, name, content):
        if not self.allows(name):
            return self.answer(412, {"error": {"code": 412}})
        generation = max((g for g, _ in OBJECTS.values()), default=1000) + 1
        OBJECTS[name] = generation, content
        self.answer(200, self.describe(name))

    def allows(self, name):
        wanted = self.asked.get("ifGenerationMatch")
        now = OBJECTS.get(name, (0, b""))[0]
        return wanted is None or int(wanted) == now

    def serve(self, name, download):
        if name not in OBJECTS:
            return self.answer(404, {"error": {"code": 404, "message": name}})
        generation, content = OBJECTS[name]
        if not self.allows(name):
            return self.answer(412, {"error": {"code": 412}})
        if self.command == "DELETE":
            del OBJECTS[name]
            return self.answer(204, b"")
        if self.asked.get("ifGenerationNotMatch") == str(generation):
            return self.answer(304, b"")
        if not download and self.asked.get("alt") != "media":
            return self.answer(200, self.describe(name))
        status, extra = 200, {"X-Goog-Generation": str(generation)}
        if wanted := self.headers.get("Range"):
            first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted).groups()
            begin = int(first) if first else max(len(content) - int(last), 0)
            end = min(int(last) + 1, len(content)) if first and last else len(content)
            if begin >= len(content):
                return self.answer(416, b"")
            status = 206
            extra["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            content = content[begin:end]
        self.answer(status, content, **extra)

    def describe(self, name):
        generation, content = OBJECTS[name]
        return {
            "kind": "storage#object", "name": name, "bucket": "bucket",
            "generation": str(generation), "metageneration": "1",
            "size": str(len(content)), "contentType": "application/octet-stream",
            "timeCreated": "2020-01-01T00:00:00Z", "updated": "2020-01-01T00:00:00Z",
        }  # fmt: skip

    def list_names(self):
        prefix, delimiter = (self.asked.get(k, "") for k in ("prefix", "delimiter"))
        begin, end = (self.asked.get(f"{k}Offset", "") for k in ("start", "end"))
        items, prefixes = [], set()
        for name in sorted(OBJECTS):
            if not name.startswith(prefix) or name < begin or (end and name >= end):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self.describe(name))
        self.answer(200, {"items": items, "prefixes": sorted(prefixes)})

    def answer(self, status, content, **headers):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content-Type"] = "application/json; charset=UTF-8"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(content)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("localhost", 0), Handler)
    print(f"http://localhost:{server.server_port}", flush=True)
    server.serve_forever()
