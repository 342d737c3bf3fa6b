"""Changes settings and firmware, as Ironic's interfaces do."""
import time

import requests
import sushy

import dell


def registry(lab, bios):
    """Names of whole numbers in the registry of the BIOS.

    Debian's package lacks the data with which bios.get_attribute_registry begins: this is the rest of it.
    """
    file, = [f for f in lab.root._get_registry_collection().get_members() if f.registry == bios._attribute_registry]
    known = file.get_attribute_registry("en", None)
    if known is None and lab.sent[-1][4] == 406:
        lab.met.add("identity_refused")  # newer versions of sushy ask again like this
        lab.conn._session.headers["Accept-Encoding"] = requests.utils.default_headers()["Accept-Encoding"]
        known = file.get_attribute_registry("en", None)
    return [a.name for a in known.registry_entries.attributes if a.attribute_type == "Integer"]


def bios(lab):
    settings = lab.system.bios
    if "Dell" in lab.system.manufacturer and "Scheduled" in dell.queue(lab):
        lab.met.add("mode_is_job")
        lab.on()
        lab.off()
        dell.wait(lambda: set(dell.queue(lab)) <= {"Completed"})
    change = {"NumLock": "Disabled"}
    lab.tagged(lambda: settings.set_attributes(change), settings._settings.resource_uri, {"Attributes": change})
    if len(settings.pending_attributes) > 1:
        lab.met.add("pending_is_all")
    if "Dell" in lab.system.manufacturer:
        try:
            settings.set_attributes({"QuietBoot": False})
        except sushy.exceptions.BadRequestError as e:
            if "SYS011" not in str(e):
                raise
            lab.met.add("settings_are_job")
    lab.on()
    settings.refresh(force=True)
    if settings.attributes["NumLock"] != "Disabled":
        raise SystemExit("the BIOS settings are %s" % settings.attributes)
    lab.found["bios"] = registry(lab, settings)


def secure_boot(lab):
    try:
        setting = lab.system.secure_boot
        setting.refresh(force=True)
    except sushy.exceptions.AccessError as e:
        if "OemLicenseNotPassed" not in str(e):
            raise
        lab.met.add("no_licence")
        return
    is_dell = "Dell" in lab.system.manufacturer
    if is_dell:
        dell.wait(lambda: set(dell.queue(lab)) <= {"Completed"})
    lab.tagged(lambda: setting.set_enabled(True), setting.path, {"SecureBootEnable": True})
    if is_dell:
        try:
            setting.set_enabled(False)
        except sushy.exceptions.BadRequestError as e:
            if "SYS011" not in str(e):
                raise
            lab.met.add("secure_boot_is_job")
    setting.refresh(force=True)
    lab.found["secure_boot"] = setting.enabled


def start_update(lab, service, image):
    for _ in range(10):
        try:
            return service.simple_update(image)
        except sushy.exceptions.HTTPError as e:
            if "SYS518" not in str(e):  # newer versions of sushy send it again themselves
                raise
            lab.met.add("not_ready")
    raise SystemExit("the controller is never ready")


def firmware(lab, image):
    try:
        service = lab.root.get_update_service()
    except sushy.exceptions.MissingAttributeError:
        lab.met.add("no_update")
        lab.found["bios_version"] = lab.system.bios_version
        return
    monitor = start_update(lab, service, image)
    over = False
    try:
        for _ in range(600):
            state = monitor.get_task().task_state
            over = state not in (sushy.TASK_STATE_NEW, sushy.TASK_STATE_RUNNING)
            if over:
                break
            time.sleep(0.05)
    except sushy.exceptions.ResourceNotFoundError:
        lab.met.add("task_gone")  # Ironic restarts the machine then, too
    lab.system.refresh(force=True)
    if over and state == sushy.TASK_STATE_COMPLETED and not lab.system.bios_version.endswith("99.1"):
        lab.met.add("done_before_start")
    lab.restart()
    for _ in range(600):
        lab.system.refresh(force=True)
        lab.found["bios_version"] = lab.system.bios_version
        if lab.system.bios_version.endswith("99.1"):
            break
        time.sleep(0.05)
