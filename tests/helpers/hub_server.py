"""A stand-in for the HTTP API of the Hugging Face hub: one process, files in memory."""

import base64
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

SHA = "a" * 40


class HubServer(ThreadingHTTPServer):
    """Models that were committed.

    Attributes:
        files: of each model, by name, the bytes of each file.
        objects: bytes of large files, by their SHA-256.
        cards: every card that was given to be checked.
        private: whether each model was made private.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.objects, self.cards, self.private = {}, {}, [], {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self):
        self._answer({"error": "not found"}, 404, X_Error_Code="EntryNotFound")

    def do_POST(self):
        hub, body = self.server, self._body()
        path = urlsplit(self.path).path
        if "Authorization" not in self.headers:
            self._answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            hub.files.setdefault(name, {})
            hub.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
            self._answer({"url": f"{hub.url}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            hub.cards.append(json.loads(body)["content"])
            self._answer({"warnings": [], "errors": []})
        elif "/preupload/" in path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif path.endswith("/objects/batch"):
            objects = [
                {**it, "actions": {"upload": {"href": f"{hub.url}/objects/{it['oid']}"}}}
                for it in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self._commit(path.split("/commit/")[0].removeprefix("/api/models/"), body)
        else:
            self._missing()

    def _commit(self, name, body):
        hub = self.server
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                hub.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[name][value["path"]] = hub.objects[value["oid"]]
        url = f"{hub.url}/{name}/commit/{SHA}"
        self._answer({"commitOid": SHA, "commitUrl": url, "success": True})

    def do_PUT(self):
        body = self._body()
        self.server.objects[hashlib.sha256(body).hexdigest()] = body
        self._answer(b"")

    def do_GET(self):
        hub, path = self.server, unquote(urlsplit(self.path).path)
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = hub.files.get(name)
        if files is None:
            self._answer({"error": "not found"}, 404, X_Error_Code="RepoNotFound")
        elif "/resolve/" in path:
            content = files.get(path.split("/resolve/")[1].partition("/")[2])
            if content is None:
                self._answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=SHA)
                return
            etag = hashlib.sha256(content).hexdigest()
            self._answer(content, ETag=f'"{etag}"', X_Repo_Commit=SHA)
        elif "/tree/" in path:
            folder = path.split("/tree/")[1].partition("/")[2]
            listed = {it: content for it, content in files.items() if it.startswith(folder)}
            self._answer(
                [
                    {
                        "type": "file",
                        "path": it,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                    }
                    for it, content in listed.items()
                ]
            )
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": it} for it in files]
            self._answer({"id": name, "modelId": name, "sha": SHA, "siblings": siblings})
        else:
            self._missing()

    do_HEAD = do_GET  # noqa: N815 - as the library calls it


@contextmanager
def running_hub():
    """A hub that answers inside the block."""
    server = HubServer()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
