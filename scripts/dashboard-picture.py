#!/usr/bin/env python3
"""Takes a picture of the dashboard after a minute of traffic: dashboard-picture.py SLIDEGATE FILE"""

import base64
import http.client
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

RULES = """
rules:
  - { name: login-per-ip, match: { api: /login }, key: [ip], limit: 5, window: 10s, count: attempts }
  - { name: api-per-key, match: { api: "/v1/*" }, key: [api-key], limit: 30, window: 1s, algorithm: token-bucket, burst: 40 }
  - { name: api-per-key-next, match: { api: "/v1/*" }, key: [api-key], limit: 20, window: 1s, shadow-of: api-per-key }
  - { name: llm-tokens, match: { api: /chat }, key: [user], limit: 20000, window: 1m }
"""
SECONDS = 62


def traffic(port: int, stop: threading.Event) -> None:
    """Sends requests until it is stopped: waves of API calls, logins, one client that tries passwords, and a language model."""
    random.seed(1)
    server = http.client.HTTPConnection("127.0.0.1", port)

    def acquire(permits=1, **attributes):
        body = {"attributes": {name.replace("_", "-"): value for name, value in attributes.items()}, "permits": permits}
        server.request("POST", "/v1/acquire", json.dumps(body), {"content-type": "application/json"})
        server.getresponse().read()

    begin = time.time()
    while not stop.wait(0.1):
        at = time.time() - begin
        for _ in range(int(5 + 3 * math.sin(at / 5) + 3 * random.random())):
            acquire(api="/v1/orders", api_key=random.choice(["shop", "shop", "shop", "shop", "mobile", "partner"]))
        if random.random() < 0.2:
            acquire(api="/login", ip=f"203.0.113.{random.randrange(12)}", user=random.choice(["alice", "bob"]))
        if 35 < at < 50:
            acquire(api="/login", ip="198.51.100.7", user="admin")
        if random.random() < 0.1:
            acquire(api="/chat", user=random.choice(["alice", "bob"]), permits=400)


def lines_until(process: subprocess.Popen, word: str) -> str:
    """The line of a program's output that has a word."""
    for line in process.stdout:
        if word in line:
            return line
    sys.exit(f"{process.args[0]} ended")


def picture(driver: str, url: str) -> bytes:
    """Picture of a page after it was open for some seconds."""

    def call(method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(driver + path, data, {"content-type": "application/json"}, method=method)
        return json.load(urllib.request.urlopen(request))["value"]

    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1080"]
    session = call("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}})
    path = f"/session/{session['sessionId']}"
    try:
        call("POST", f"{path}/url", {"url": url})
        click = "[...document.querySelectorAll('button, label')].find(it => it.textContent.trim() === '1 min')?.click()"
        call("POST", f"{path}/execute/sync", {"script": click, "args": []})
        time.sleep(4)
        return base64.b64decode(call("GET", f"{path}/screenshot"))
    finally:
        call("DELETE", path)


def main(slidegate: str, file: str) -> None:
    slidegate, file = os.path.abspath(slidegate), os.path.abspath(file)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/rules.yaml", "w") as rules:
            rules.write(RULES)
        listeners = ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"]
        pipe = {"stdout": subprocess.PIPE, "text": True, "cwd": folder}
        server = subprocess.Popen([slidegate, "serve", "--config", "rules.yaml", *listeners], **pipe)
        driver = subprocess.Popen(["chromedriver", "--port=0"], **pipe)
        stop = threading.Event()
        try:
            url = lines_until(server, "listening on http").split()[-1]
            port = lines_until(driver, "started successfully on port").rstrip(".\n").split()[-1]
            clients = threading.Thread(target=traffic, args=(int(url.rsplit(":", 1)[1]), stop))
            clients.start()
            time.sleep(SECONDS)
            with open(file, "wb") as out:
                out.write(picture(f"http://127.0.0.1:{port}", url))
            stop.set()
            clients.join()
        finally:
            stop.set()
            server.terminate()
            driver.terminate()


main(*sys.argv[1:])
