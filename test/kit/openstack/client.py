"""Runs commands of `openstack`, each in a fork of a process that has loaded the client, which takes longer than a command.

Each line of standard input is a command: {"args": [...], "env": {...}}. Each line of standard output is what became of
one: {"status": number, "out": text, "err": text}.
"""
import contextlib
import io
import json
import os
import sys

from ironicclient.osc import plugin  # noqa: F401, the client loads it when it needs it
from ironicclient.v1 import client, utils  # noqa: F401
from openstackclient import shell

for action in utils.PROVISION_ACTIONS.values():
    if action:
        action["poll_interval"] = 0.5  # seconds; the client asks every ten seconds, for machines that take minutes


def run(args):
    try:
        return shell.OpenStackShell().run(args)
    except SystemExit as e:
        return e.code


for line in sys.stdin:
    if os.fork():
        _, status = os.wait()
        if status:
            sys.exit(f"a command died: {status}: {line}")
        continue
    command = json.loads(line)
    for name in [n for n in os.environ if n.startswith("OS_")]:
        del os.environ[name]
    os.environ.update(command["env"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(command["args"])
    status = status if isinstance(status, int) else int(bool(status))
    print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}), flush=True)
    os._exit(0)
