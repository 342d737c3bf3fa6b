"""Walks through every subcommand of `openstack baremetal`, in one process because the client starts slowly.

The endpoint is the only argument. What the client has is asked of the client: a command that did not succeed once, and is not said to be refused,
fails the walk.
"""
import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import time
from importlib import metadata

from ironicclient.v1 import utils
from openstackclient import shell

GROUP = "openstack.baremetal.v1"
# Commands that fake hardware refuses, in Ironic with the same words; fails() below holds them.
REFUSED = {"baremetal driver passthru call", "baremetal node inject nmi"}

succeeded, refused = set(), set()
commands = sorted({e.name.replace("_", " ") for d in metadata.distributions() for e in d.entry_points if e.group == GROUP})
names = {tuple(c.split()): c for c in commands}


def start(args):
    """Runs `openstack baremetal ARGS` and returns its status, what it printed, and its complaint."""
    words = ("baremetal",) + tuple(args)
    known = [n for n in names if words[:len(n)] == n]
    if not known:
        sys.exit(f"the client has no command {' '.join(args)}")
    name = names[max(known, key=len)]
    for handler in list(logging.getLogger().handlers):
        logging.getLogger().removeHandler(handler)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = shell.OpenStackShell().run(list(words))
        except SystemExit as e:
            status = e.code
    (refused if status else succeeded).add(name)
    return status, out.getvalue(), err.getvalue()


def run(*args):
    status, out, err = start(args)
    if status:
        sys.exit(f"openstack baremetal {' '.join(args)}: status {status}\n{out}{err}")
    return out


def show(*args):
    out = run(*args, "-f", "json")
    try:
        return json.loads(out)
    except ValueError as e:
        sys.exit(f"openstack baremetal {' '.join(args)}: {e}\n{out}")


def fails(text, *args):
    status, out, err = start(args)
    if not status or text not in err:
        sys.exit(f"openstack baremetal {' '.join(args)}: status {status}, want a failure with {text!r}\n{out}{err}")


def check(what, got, want):
    if got != want:
        sys.exit(f"{what} = {got!r}, want {want!r}")


def node(field, name="n1"):
    return show("node", "show", name, "--fields", field)[field]


def until(field, want):
    """Waits for what goes on behind an answer; the commands themselves take long enough to need no pause."""
    got = None
    end = time.monotonic() + 120
    while time.monotonic() < end:
        got = node(field)
        if got == want:
            return
    check(field, got, want)


os.environ.update(OS_AUTH_TYPE="none", OS_ENDPOINT=sys.argv[1])

for action in utils.PROVISION_ACTIONS.values():
    if action:
        action["poll_interval"] = 0.2  # seconds; the client asks every ten seconds, for machines that take minutes

# What there is.
check("drivers", [d["Supported driver(s)"] for d in show("driver", "list")], ["fake-hardware", "idrac", "ipmi", "manual-management", "redfish"])
check("driver", show("driver", "show", "fake-hardware")["name"], "fake-hardware")
check("properties", "ipmi_address" in [p["Property"] for p in show("driver", "property", "list", "ipmi")], True)
check("RAID properties", "raid_level" in [p["Property"] for p in show("driver", "raid", "property", "list", "fake-hardware")], True)
check("driver's methods", show("driver", "passthru", "list", "fake-hardware"), [])
fails("No handler for method", "driver", "passthru", "call", "fake-hardware", "nothing")
host = show("conductor", "list")[0]["Hostname"]
check("conductor", show("conductor", "show", host)["alive"], True)

# Chassis and nodes.
chassis = show("chassis", "create", "--description", "rack 1")["uuid"]
run("chassis", "set", chassis, "--description", "rack 2", "--extra", "row=a")
run("chassis", "unset", chassis, "--extra", "row")
check("chassis", show("chassis", "show", chassis)["description"], "rack 2")
check("chassis", [c["UUID"] for c in show("chassis", "list")], [chassis])
made = show("node", "create", "--driver", "fake-hardware", "--name", "n1", "--network-interface", "flat", "--chassis-uuid", chassis, "--resource-class", "gold",
            "--property", "cpus=4", "--driver-info", "fake_inventory=" + json.dumps({"cpus": 8, "macs": ["52:54:00:00:00:01"]}))
check("state", made["provision_state"], "enroll")
uuid = made["uuid"]
run("node", "set", "n1", "--description", "the first", "--extra", "rack=r1", "--extra", "shelf=2")
run("node", "unset", "n1", "--extra", "rack")
check("description", node("description"), "the first")
check("extra", node("extra"), {"shelf": 2})
fails("can not be performed", "node", "provide", "n1")
run("node", "manage", "n1", "--wait", "300")
check("state", node("provision_state"), "manageable")
check("validation", {v["Interface"]: v["Result"] for v in show("node", "validate", "n1")}["power"], True)
run("node", "inspect", "n1", "--wait", "300")
check("nodes", [n["Name"] for n in show("node", "list", "--long", "--provision-state", "manageable")], ["n1"])

# Ports and port groups.
group = show("port", "group", "create", "--node", uuid, "--name", "bond0", "--address", "52:54:00:00:00:0b", "--mode", "802.3ad")["uuid"]
run("port", "group", "set", "bond0", "--extra", "a=b", "--property", "miimon=100")
run("port", "group", "unset", "bond0", "--extra", "a")
check("port group", show("port", "group", "show", "bond0")["properties"], {"miimon": 100})
check("port groups", [g["UUID"] for g in show("port", "group", "list", "--node", "n1")], [group])
port = show("port", "create", "52:54:00:00:00:0A", "--node", uuid, "--port-group", group)["uuid"]
run("port", "set", port, "--extra", "a=b", "--physical-network", "blue")
run("port", "unset", port, "--extra", "a", "--physical-network")
check("port", show("port", "show", port)["address"], "52:54:00:00:00:0a")
check("port", show("port", "show", port)["physical_network"], None)
check("ports", [p["UUID"] for p in show("port", "list", "--port-group", "bond0")], [port])

# Volumes, which want a machine that is off.
run("node", "power", "off", "n1")
until("power_state", "power off")
connector = show("volume", "connector", "create", "--node", uuid, "--type", "iqn", "--connector-id", "iqn.2026-01.org.example:n1")["uuid"]
run("volume", "connector", "set", connector, "--extra", "a=b")
run("volume", "connector", "unset", connector, "--extra", "a")
check("connector", show("volume", "connector", "show", connector)["type"], "iqn")
check("connectors", [v["UUID"] for v in show("volume", "connector", "list")], [connector])
target = show("volume", "target", "create", "--node", uuid, "--type", "iscsi", "--boot-index", "0", "--volume-id", "v1")["uuid"]
run("volume", "target", "set", target, "--property", "target_lun=1")
run("volume", "target", "unset", target, "--property", "target_lun")
check("target", show("volume", "target", "show", target)["volume_id"], "v1")
check("targets", [v["UUID"] for v in show("volume", "target", "list")], [target])
run("volume", "target", "delete", target)
run("volume", "connector", "delete", connector)

# Cleaning by hand, what it leaves, and its end half way.
settings = [{"name": "virtualization", "value": "on"}]
run("node", "clean", "n1", "--wait", "300", "--clean-steps",
    json.dumps([{"interface": "bios", "step": "apply_configuration", "args": {"settings": settings}}]))
check("BIOS", [s["BIOS setting value"] for s in show("node", "bios", "setting", "list", "n1")], ["on"])
check("BIOS", show("node", "bios", "setting", "show", "n1", "virtualization")["value"], "on")
run("node", "clean", "n1", "--clean-steps", json.dumps([{"interface": "power", "step": "wait", "args": {"seconds": 300}}]))
until("provision_state", "clean wait")
run("node", "abort", "n1")
until("provision_state", "clean failed")
run("node", "maintenance", "unset", "n1")
run("node", "manage", "n1", "--wait", "300")

# Deployments.
run("node", "provide", "n1", "--wait", "300")
run("deploy", "template", "create", "CUSTOM_FAST", "--steps",
    json.dumps([{"interface": "bios", "step": "apply_configuration", "args": {"settings": settings}, "priority": 90}]))
run("deploy", "template", "set", "CUSTOM_FAST", "--extra", "a=b")
run("deploy", "template", "unset", "CUSTOM_FAST", "--extra", "a")
check("template", show("deploy", "template", "show", "CUSTOM_FAST")["steps"][0]["priority"], 90)
check("templates", [t["Name"] for t in show("deploy", "template", "list")], ["CUSTOM_FAST"])
run("node", "add", "trait", "n1", "CUSTOM_FAST", "CUSTOM_RED")
run("node", "remove", "trait", "n1", "CUSTOM_RED")
check("traits", [t["Traits"] for t in show("node", "trait", "list", "n1")], ["CUSTOM_FAST"])
check("allocation", show("allocation", "create", "--name", "a1", "--resource-class", "gold", "--trait", "CUSTOM_FAST", "--wait", "300")["state"], "active")
run("allocation", "set", "a1", "--extra", "a=b")
run("allocation", "unset", "a1", "--extra", "a")
check("allocation", show("allocation", "show", "a1")["node_uuid"], uuid)
check("allocations", [a["Name"] for a in show("allocation", "list", "--state", "active")], ["a1"])
image = ["--instance-info", "image_source=http://example.org/image.raw", "--instance-info", "image_os_hash_algo=sha256",
         "--instance-info", "image_os_hash_value=" + "0" * 64]
run("node", "set", "n1", *image)
run("node", "deploy", "n1", "--wait", "300", "--config-drive", json.dumps({"meta_data": {"hostname": "n1"}}))
check("state", node("provision_state"), "active")
check("config drive", node("instance_info")["configdrive"], "******")
check("power", node("power_state"), "power on")
run("node", "rebuild", "n1", "--wait", "300")
run("node", "rescue", "n1", "--wait", "300", "--rescue-password", "secret")
check("state", node("provision_state"), "rescue")
run("node", "unrescue", "n1", "--wait", "300")
check("state", node("provision_state"), "active")

# The machine's controller.
run("node", "reboot", "n1", "--soft", "--power-timeout", "300")
until("target_power_state", None)
run("node", "power", "off", "n1", "--soft")
until("power_state", "power off")
run("node", "power", "on", "n1", "--power-timeout", "300")
until("power_state", "power on")
run("node", "boot", "device", "set", "n1", "pxe", "--persistent")
check("boot device", show("node", "boot", "device", "show", "n1")["boot_device"], "pxe")
check("boot devices", "pxe" in str(show("node", "boot", "device", "show", "n1", "--supported")), True)
run("node", "boot", "mode", "set", "n1", "uefi")
until("boot_mode", "uefi")
run("node", "secure", "boot", "on", "n1")
until("secure_boot", True)
run("node", "secure", "boot", "off", "n1")
until("secure_boot", False)
run("node", "console", "enable", "n1")
until("console_enabled", True)
check("console", show("node", "console", "show", "n1")["console_enabled"], True)
run("node", "console", "disable", "n1")
until("console_enabled", False)
fails("does not support inject_nmi", "node", "inject", "nmi", "n1")
check("methods", "third_method_sync" in [m["Name"] for m in show("node", "passthru", "list", "n1")], True)
run("node", "passthru", "call", "n1", "second_method", "--arg", "bar=kazoo")
run("node", "vif", "attach", "n1", "39460104-4d8e-4d04-9b5e-710f35df86c3")
check("VIFs", [v["ID"] for v in show("node", "vif", "list", "n1")], ["39460104-4d8e-4d04-9b5e-710f35df86c3"])
run("node", "vif", "detach", "n1", "39460104-4d8e-4d04-9b5e-710f35df86c3")
run("node", "maintenance", "set", "n1", "--reason", "looking at it")
check("maintenance", node("maintenance_reason"), "looking at it")
run("node", "maintenance", "unset", "n1")
check("maintenance", node("maintenance"), False)
history = show("node", "history", "list", "n1")
check("history", show("node", "history", "get", "n1", history[0]["UUID"])["uuid"], history[0]["UUID"])

# Taking over a machine that runs already, and the end of everything.
run("node", "undeploy", "n1", "--wait", "300")
check("state", node("provision_state"), "available")
fails("could not be found", "allocation", "show", "a1")
allocated = show("allocation", "create", "--name", "a2", "--resource-class", "gold", "--wait", "300")
run("allocation", "delete", allocated["uuid"])
check("instance", node("instance_uuid"), None)
run("node", "manage", "n1", "--wait", "300")
run("node", "set", "n1", *image)
run("node", "adopt", "n1", "--wait", "300")
check("state", node("provision_state"), "active")
run("node", "undeploy", "n1", "--wait", "300")
run("port", "delete", port)
run("port", "group", "delete", group)
run("deploy", "template", "delete", "CUSTOM_FAST")
run("node", "delete", "n1")
run("chassis", "delete", chassis)
with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
    json.dump({"chassis": [{"description": "rack 3", "nodes": [{"name": "n2", "driver": "fake-hardware", "ports": [{"address": "52:54:00:00:00:0c"}]}]}]}, f)
    f.flush()
    run("create", f.name)
check("nodes", [n["Name"] for n in show("node", "list")], ["n2"])
check("ports", [p["Address"] for p in show("port", "list")], ["52:54:00:00:00:0c"])

for what, have, want in (("did not succeed", set(commands) - succeeded, REFUSED), ("were not refused", REFUSED - refused, set())):
    if have != want:
        sys.exit(f"commands that {what}: {sorted(have)}, want {sorted(want)}")
print(f"{len(succeeded)} of {len(commands)} subcommands succeeded, {len(REFUSED)} are refused")
