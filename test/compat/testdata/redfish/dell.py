"""What Ironic does at Dell's controllers only. Debian's version of sushy has no part for them: newer ones do."""
import time

import sushy

import media

IMPORT = "OemManager.v1_0_0#OemManager.ImportSystemConfiguration"
CONFIGURATION = ('<SystemConfiguration><Component FQDD="%s"><Attribute Name="ServerBoot.1#BootOnce">Enabled'
                 '</Attribute><Attribute Name="ServerBoot.1#FirstBootDevice">VCD-DVD</Attribute></Component>'
                 '</SystemConfiguration>')


def queue(lab):
    """The states of the jobs."""
    home = lab.managers[0].json["Links"]["Oem"]["Dell"]["Jobs"]["@odata.id"]
    return [lab.conn.get(j["@odata.id"]).json()["JobState"] for j in lab.conn.get(home).json()["Members"]]


def wait(state):
    for _ in range(200):
        if state():
            return
        time.sleep(0.05)
    raise SystemExit("Dell's controller does not come back")


def change(lab):
    """Asks for a change; False when there is no answer."""
    try:
        lab.conn.patch(lab.system.path, data={"Boot": {"BootSourceOverrideTarget": "Pxe",
                                                       "BootSourceOverrideEnabled": "Once"}})
    except sushy.exceptions.ConnectionError:
        return False
    except sushy.exceptions.ServerSideError:
        pass
    if "SYS518" in lab.sent[-1][5]:
        lab.met.add("not_ready_after_reset")
    return True


def reset(lab):
    """Restarts the controller, and waits for its Lifecycle Controller."""
    manager = lab.managers[0]
    try:
        lab.conn.get("/redfish/v1/Dell" + manager.path[len("/redfish/v1"):] + "/DellLCService")
    except sushy.exceptions.ResourceNotFoundError:
        lab.met.add("no_dell_tree")
    service = manager.json["Links"]["Oem"]["Dell"]["DellLCService"]["@odata.id"]
    ready = lab.conn.get(service).json()["Actions"]["#DellLCService.GetRemoteServicesAPIStatus"]["target"]
    for _ in range(5):  # on a busy computer this is slower than the controller
        manager.reset_manager(sushy.RESET_TYPE_GRACEFUL_RESTART)
        wait(lambda: change(lab))
        if "not_ready_after_reset" in lab.met:
            break
    wait(lambda: lab.conn.post(ready, data={}).json()["LCStatus"] == "Ready")


def import_boot(lab, url):
    """Boots from the virtual drive by an import of a configuration."""
    drive = media.insert(lab, url)
    manager = lab.managers[0]
    target = manager.json["Actions"]["Oem"][IMPORT]["target"]
    data = {"ShareParameters": {"Target": "ALL"}, "ImportBuffer": CONFIGURATION % manager.identity}
    try:
        lab.conn.post(target, data=data)
    except sushy.exceptions.BadRequestError as e:
        if "Target" not in str(e):
            raise
        lab.met.add("import_wants_list")
        data["ShareParameters"]["Target"] = ["ALL"]
        lab.conn.post(target, data=data)
    wait(lambda: set(queue(lab)) <= {"Completed"})
    lab.on("import")
    lab.off()
    media.eject(lab, drive)
