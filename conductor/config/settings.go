package config

import (
	"time"

	"github.com/ingot-metal/ingot/conductor/config/rule"
)

// Rules of package rule, as the list of settings names them.
type (
	oneOf    = rule.OneOf
	positive = rule.Positive
	hours    = rule.Hours
	atLeast  = rule.AtLeast
	hostPort = rule.HostPort
	ipv4     = rule.IPv4
)

// setting is one row of the list of settings, from which everything else is made: the defaults, what --set and the
// environment may change, checks of single values, `ingotd --help`, the example file and
// docs/reference/configuration.md.
type setting struct {
	key   string
	field any // pointer to the field of the Config
	value any // default; nil is the zero value
	rule  rule.Rule
	text  string // for operators: whole sentences
}

// section is a group of settings, and the text about all of them.
type section struct {
	title, text string
	settings    []setting
}

// sections lists every setting, bound to the fields of c.
func (c *Config) sections() []section {
	return []section{
		{"General", "", []setting{
			{"data_dir", &c.DataDir, "/var/lib/ingot", nil,
				"Folder of database, CA and collected logs, for ingotd's user alone."},
			{"hostname", &c.Hostname, nil, nil,
				"Name of this conductor in the API and in histories. Empty: the host name of the machine."},
			{"conductor_group", &c.ConductorGroup, nil, nil,
				"Conductor group that it serves. Empty: nodes without one."},
			{"conductor_weight", &c.ConductorWeight, 1, atLeast(0), "Its share of the nodes, against other conductors."},
			{"log_level", &c.LogLevel, "info", oneOf{"debug", "info", "warn", "error"}, "Least severity that is logged."},
			{"log_format", &c.LogFormat, "text", oneOf{"text", "json"}, "Format of the log."},
		}},
		{"Store", "", []setting{
			{"store.url", &c.Store.URL, "sqlite:", nil,
				"Database: `sqlite:`, in the data directory, or `postgres://USER@HOST:PORT/DATABASE`, without a password."},
			{"store.password_file", &c.Store.PasswordFile, nil, nil,
				"File with its password."},
			{"store.ephemeral", &c.Store.Ephemeral, nil, nil,
				"Start with an empty database whenever none exists, as with Metal3. Otherwise ingotd refuses to."},
			{"store.key", &c.Store.Key, nil, nil,
				"Key that encrypts secrets in the database: 32 bytes in base64, best from the environment (INGOT_STORE_KEY). Empty: the file `key` in the data directory, made at the first start."},
		}},
		{"API", "", apiSettings(&c.API)},
		{"Dashboard", "", []setting{
			{"web.enabled", &c.Web.Enabled, true, nil,
				"Serve the dashboard at /ui of the API's address."},
		}},
		{"Agents", "", []setting{
			{"agents.listen", &c.Agents.Listen, ":6386", hostPort(true), "HOST:PORT where agents connect (gRPC over TLS)."},
			{"agents.advertise", &c.Agents.Advertise, nil, hostPort(false),
				"HOST:PORT by which agents reach this conductor. Empty: the provisioning address with the port of agents.listen."},
		}},
		{"Other conductors", "", []setting{
			{"peer.listen", &c.Peer.Listen, nil, hostPort(false),
				"HOST:PORT where other conductors of the same PostgreSQL connect (TLS). Empty: port " + peerPort +
					" with the host of agents.listen."},
			{"peer.advertise", &c.Peer.Advertise, nil, hostPort(false),
				"HOST:PORT by which they reach this one. Empty: the address in peer.listen, or that towards the database, or, with that on this host, of agents.advertise."},
		}},
		{"Network boot", "", netbootSettings(&c.Netboot)},
		{"Deployment", "", append(deploySettings(&c.Deploy), setting{"export.allow", &c.Export.Allow, nil, nil,
			"Allow deployments with the step export_disk, which lends the machine's disk to another host that writes it."},
			setting{"export.writers", &c.Export.Writers, nil, nil,
				"Hosts that write disks for deploy interface iscsi, as ADDRESS=INITIATOR."})},
		{"Power", "", []setting{
			{"power.timeout", &c.Power.Timeout, time.Minute, positive{},
				"Time that a machine may take to turn on or off after it was asked to."},
			{"power.sync_interval", &c.Power.SyncInterval, time.Minute, nil,
				"Time between two readings of the power state of every machine. Negative: read only when needed."},
			{"power.force", &c.Power.Force, nil, nil,
				"Turn a machine back on or off when its power state differs from the recorded one. Otherwise the record follows the machine."},
			{"power.call_timeout", &c.Power.CallTimeout, time.Minute, positive{}, "Time limit of one exchange with a BMC."},
			{"power.retries", &c.Power.Retries, 5, atLeast(1), "Attempts in a row of an exchange that fails."},
		}},
		{"Health", "How controllers with Redfish are asked how their machines are.", []setting{
			{"health.interval", &c.Health.Interval, 10 * time.Minute, nil,
				"Time between readings of a machine's health; longer after failures. Negative: never."},
			{"health.at_once", &c.Health.AtOnce, 16, atLeast(1), "Machines whose health is read at the same time."},
			{"health.faults", &c.Health.Faults, nil, nil,
				"Give a node the fault `hardware failure` while a drive, memory module or power supply fails or will."},
		}},
		{"Monitoring", "", []setting{
			{"metrics.listen", &c.Metrics.Listen, nil, hostPort(false),
				"HOST:PORT of /metrics alone. Beyond loopback for users of the API, over its TLS. Empty: none."},
			{"metrics.insecure_listen", &c.Metrics.InsecureListen, nil, nil,
				"Serve metrics.listen to everyone, without TLS."},
			{"metrics.api", &c.Metrics.API, true, nil, "Serve /metrics at api.listen, to readers of the system."},
			{"metrics.label_values", &c.Metrics.LabelValues, 200, atLeast(1),
				"Most values of labels for steps, interfaces and vendors."},
			{"metrics.node_series", &c.Metrics.NodeSeries, 300_000, atLeast(0),
				"Most series of single nodes (sensors). 0: none."},
			{"audit.file", &c.Audit.File, nil, nil,
				"File for a line of JSON for each requested change; SIGHUP opens it anew. Empty: none."},
			{"audit.syslog", &c.Audit.Syslog, nil, nil,
				"The same to syslog: local, udp://HOST:PORT or tcp://HOST:PORT."},
			{"traces.endpoint", &c.Traces.Endpoint, nil, nil,
				"URL of an OpenTelemetry collector (OTLP over HTTP). Empty: no traces."},
			{"traces.percent", &c.Traces.Percent, 100, rule.Between(0, 100),
				"Share of requests to the API that begin a trace."},
		}},
		{"Hardware types and interfaces", "Which hardware types and interfaces nodes may have. An empty list " +
			"allows all; an empty default is the first interface that the node's hardware type supports.",
			hardwareSettings(&c.Hardware)},
		{"Redfish", "", []setting{
			{"redfish.ca_dir", &c.Redfish.CADir, nil, nil,
				"Folder with certificates of authorities in PEM, which driver_info redfish_verify_ca of nodes may name. Empty: none."},
		}},
		{"Swarm", "", []setting{
			{"swarm.enabled", &c.Swarm.Enabled, nil, nil,
				"Agents that write the same published image send its chunks to each other, so that the server sends each about once."},
			{"swarm.upload_limit", &c.Swarm.UploadLimit, nil, nil,
				"Bytes per second that each agent sends to others, at least 1000000. 0: no limit."},
		}},
		{"Steps", "Which steps run automatically, and in which order. Entries are INTERFACE.STEP:PRIORITY, " +
			"such as deploy.erase_devices:10. The highest priority runs first, 0 leaves a step out. Steps named by a " +
			"request, a template or a runbook take precedence.",
			stepSettings(&c.Steps)},
		{"Inspection", "What an inspection changes. Names and meaning are those of Ironic's section `inspector`.",
			inspectionSettings(&c.Inspection)},
		{"Discovery", "", []setting{
			{"discovery.enabled", &c.Discovery.Enabled, nil, nil,
				"Boot the agent on any unknown machine and enrol it. Any machine on the provisioning network can then create nodes."},
			{"discovery.driver", &c.Discovery.Driver, "ipmi", nil, "Hardware type of discovered nodes."},
			{"discovery.interfaces", &c.Discovery.Interfaces, nil, nil,
				"Interfaces of discovered nodes that differ from the defaults of the type, as KIND=NAME."},
			{"discovery.limit_per_hour", &c.Discovery.LimitPerHour, 60, nil,
				"Most unknown machines booted, and nodes created, in an hour."},
		}},
		{"Pools", "How pools of warm machines are maintained. The pools themselves are set through the API.", []setting{
			{"pools.interval", &c.Pools.Interval, 10 * time.Second, positive{},
				"Time between two checks without a reported change."},
			{"pools.pause", &c.Pools.Pause, time.Minute, positive{},
				"Time before a machine that failed to be warm is tried again. It doubles with each further failure."},
			{"pools.longest_pause", &c.Pools.LongestPause, time.Hour, positive{}, "Longest such time."},
		}},
		{"Reservations", "How reservations of machines are kept. The reservations themselves are made through the API.",
			[]setting{
				{"reservations.prepare", &c.Reservations.Prepare, 30 * time.Minute, hours(0),
					"Time before a start in which the machines are in no other use, and their agents are booted."},
				{"reservations.warning", &c.Reservations.Warning, time.Hour, hours(0),
					"Time before an end at which it is announced in the histories of the machines. 0s: not at all."},
				{"reservations.interval", &c.Reservations.Interval, 10 * time.Second, positive{},
					"Time between two checks without a reported change."},
			}},
		{"Requests of the conductor", "", []setting{
			{"switches.file", &c.Switches.File, nil, nil,
				"Table of switches, for network interface switch."},
			{"fetch.allow", &c.Fetch.Allow, nil, nil,
				"Networks (CIDR) to which the conductor may connect for users although loopback, link-local or its own."},
			{"sign_of_life.networks", &c.SignOfLife.Networks, nil, nil,
				"Networks (CIDR) in which port:NUMBER is tried at addresses of a config drive's network_data. Empty: only at those that the node leased or its agent used."},
		}},
		{"OpenStack", "Services that Ingot asks as its user in Keystone (section API), and clouds whose servers are machines.",
			openstackSettings(&c.Glance, &c.Neutron, &c.Placement, &c.OpenStack)},
		{"Limits", "What is beyond a limit is closed, or answered with 503 and Retry-After.", limitSettings(&c.Limits)},
		{"History", "How much of the past is kept.", historySettings(&c.History)},
	}
}

func apiSettings(a *API) []setting {
	k := &a.Keystone
	return []setting{
		{"api.listen", &a.Listen, "127.0.0.1:6385", hostPort(true),
			"HOST:PORT of the Bare Metal API. A socket handed over by the service manager (LISTEN_FDS) is used instead."},
		{"api.insecure_listen", &a.InsecureListen, nil, nil,
			"Allow an api.listen beyond loopback without authentication: every client that reaches it controls all nodes."},
		{"api.public_url", &a.PublicURL, nil, nil,
			"Address by which clients know the API when a server in front of it encrypts or renames it. Links begin with it. Empty: the header Host, if it names this server."},
		{"api.host_names", &a.HostNames, nil, nil,
			"More names and addresses, without ports, by which clients reach this server. Known are loopback, the machine's own, and the names in api.tls_cert. With another Host, links in answers begin with the server's address."},
		{"api.resend_credentials", &a.ResendCredentials, nil, nil,
			"Require credentials in the same request when a client changes where stored ones are sent (address, port, cipher suite or certificate check of a BMC, a registry, the portal of a volume). Clients without a system role are always asked."},
		{"api.tls_cert", &a.TLSCert, nil, nil,
			"File with the certificate and its chain in PEM, read again when it changes. With it the API is served over TLS."},
		{"api.tls_key", &a.TLSKey, nil, nil, "File with the key of api.tls_cert in PEM."},
		{"api.auth", &a.Auth, "none", oneOf{"none", "http_basic", "keystone"},
			"How clients authenticate. none is for loopback only."},
		{"api.htpasswd_file", &a.HtpasswdFile, nil, nil,
			"File with the users of http_basic and their bcrypt hashes (htpasswd -B), read again when it changes."},
		{"api.keystone.auth_url", &k.AuthURL, nil, nil, "Address of Keystone, such as https://keystone.example:5000."},
		{"api.keystone.public_url", &k.PublicURL, nil, nil,
			"Address at which clients are told to get tokens. Empty: api.keystone.auth_url."},
		{"api.keystone.username", &k.Username, nil, nil,
			"User of this server in Keystone. It needs the role service or admin to validate tokens."},
		{"api.keystone.application_credential", &k.ApplicationCredential, nil, nil,
			"ID of an application credential of that user, instead of the user: its project is that of the credential."},
		{"api.keystone.password", &k.Password, nil, nil,
			"Password of that user, or secret of the application credential."},
		{"api.keystone.password_file", &k.PasswordFile, nil, nil,
			"File with that password instead, read at each login."},
		{"api.keystone.cloud", &k.Cloud, nil, nil,
			"Cloud of api.keystone.clouds_file that says all this: address, user or application credential, project, CA."},
		{"api.keystone.clouds_file", &k.CloudsFile, "/etc/openstack/clouds.yaml", nil,
			"File of clouds, as OpenStack's client reads it, with secure.yaml beside it; read at each login."},
		{"api.keystone.user_domain", &k.UserDomain, "default", nil, "Domain of that user."},
		{"api.keystone.project", &k.Project, "service", nil,
			"Project in which that user has its role. Empty: the user has the role in the system."},
		{"api.keystone.project_domain", &k.ProjectDomain, "default", nil, "Domain of the project."},
		{"api.keystone.service_project", &k.ServiceProject, nil, nil,
			"Project in the same domain whose users with the role service may do what system members may, such as Nova's. Empty: none."},
		{"api.keystone.ca_file", &k.CAFile, nil, nil,
			"Certificates that sign Keystone's. Empty: those of this machine."},
		{"api.keystone.cache_time", &k.CacheTime, 30 * time.Second, nil,
			"Time that a validated token is used without asking again, at most 1m. A revoked token works that long."},
		{"api.trusted_proxies", &a.TrustedProxies, nil, nil,
			"Addresses and networks of servers in front of the API whose header X-Forwarded-For is believed. Limits then count the client's address."},
		{"api.ramdisk", &a.Ramdisk, true, nil,
			"Serve what a stock ironic-python-agent calls without authentication: lookup, heartbeat and continue_inspection. Ingot's agent does not need it."},
	}
}

func netbootSettings(n *Netboot) []setting {
	return []setting{
		{"netboot.dhcp", &n.DHCP, "off", oneOf{"server", "proxy", "off"},
			"server: this network has no other DHCP server. proxy: it has one. off: the other server names the boot files."},
		{"netboot.interface", &n.Interface, nil, nil, "Network interface of the provisioning network."},
		{"netboot.address", &n.Address, nil, ipv4{},
			"IPv4 address of this conductor there. Empty: the first one of netboot.interface."},
		{"netboot.virtual_address", &n.Virtual, nil, ipv4{},
			"IPv4 address that keepalived moves between conductors, to boot from. Empty: none."},
		{"netboot.range_start", &n.RangeStart, nil, ipv4{}, "First IPv4 address that mode server leases."},
		{"netboot.range_end", &n.RangeEnd, nil, ipv4{}, "Last IPv4 address that mode server leases."},
		{"netboot.gateway", &n.Gateway, nil, ipv4{}, "Router (IPv4) that machines are given. Empty: none."},
		{"netboot.dns", &n.DNS, nil, ipv4{}, "Name servers (IPv4) that machines are given."},
		{"netboot.lease_time", &n.LeaseTime, time.Hour, positive{}, "Duration of a lease."},
		{"netboot.http_port", &n.HTTPPort, 8080, rule.Between(1, 65535),
			"Port of boot scripts, ramdisks and images on netboot.address."},
		{"netboot.https_port", &n.HTTPSPort, 0, rule.Between(0, 65535),
			"Port of boot images over HTTPS on netboot.address, with a certificate of the own CA. 0: over HTTP only."},
		{"netboot.external_http_url", &n.ExternalHTTPURL, nil, nil,
			"Address at which controllers reach this HTTP server, for virtual media. Empty: netboot.address and netboot.https_port, or netboot.http_port."},
		{"netboot.mdns", &n.MDNS, false, nil,
			"Announce API and agents' listener by multicast DNS on netboot.interface."},
		{"netboot.tftp", &n.TFTP, true, nil, "Serve boot programs by TFTP on netboot.address, port 69."},
		{"netboot.loader_dir", &n.LoaderDir, "/usr/lib/ipxe", nil,
			"Folder of undionly.kpxe and snponly.efi (package ipxe)."},
		{"netboot.ramdisk_dir", &n.RamdiskDir, "/var/lib/ingot/ramdisk", nil,
			"Folder that `ingot ramdisk build` wrote."},
		{"netboot.images_dir", &n.ImagesDir, "/var/lib/ingot/images", nil,
			"Folder that is served below /images/. Empty: none."},
		{"netboot.kernel_params", &n.KernelParams, nil, nil, "Kernel parameters that are added for the ramdisk."},
		{"netboot.token_life", &n.TokenLife, 15 * time.Minute, positive{},
			"Time that a boot token is valid after its boot script was fetched."},
	}
}

func deploySettings(d *Deploy) []setting {
	return []setting{
		{"deploy.allow_unverified", &d.AllowUnverified, nil, nil, "Allow images without a digest."},
		{"deploy.allow_md5", &d.AllowMD5, nil, nil,
			"Accept an MD5 sum as the digest of an image. MD5 protects from accidents, not from attackers."},
		{"deploy.automated_clean", &d.AutomatedClean, true, nil,
			"Clean nodes before they become available. The field automated_clean of a node takes precedence."},
		{"deploy.fast_track", &d.FastTrack, nil, nil,
			"Keep the agent running between inspection, cleaning and deployment instead of booting the machine for each. The key fast_track in a node's driver_info takes precedence."},
		{"deploy.boot_mode", &d.BootMode, nil, oneOf{"", "bios", "uefi"},
			"Boot mode of nodes whose capabilities name none. Empty: the machine decides."},
		{"deploy.boot_instance", &d.BootInstance, "reboot", oneOf{"reboot", "kexec"},
			"How an installed system is started: by the firmware, or at once by the agent's kernel. The key boot_instance in a node's driver_info or instance_info takes precedence."},
		{"deploy.kexec_delay", &d.KexecDelay, 5 * time.Second, positive{},
			"Time between the end of the agent's session and the kexec, in which the network of the machine can be switched."},
		{"deploy.sign_of_life", &d.SignOfLife, nil, nil,
			"How a deployed system shows that it has started: phone_home, dhcp, port:NUMBER, console:TEXT. Any one of the list is enough; the node becomes active only then. Empty: wait for none. The key sign_of_life in a node's driver_info or instance_info takes precedence."},
		{"deploy.sign_of_life_timeout", &d.SignOfLifeTimeout, 10 * time.Minute, positive{}, "Time limit of the sign of life."},
		{"deploy.phone_home_url", &d.PhoneHomeURL, nil, nil,
			"Address at which deployed systems reach this conductor for phone_home. Empty: api.public_url, or else the HTTP server of the provisioning network."},
		{"deploy.boot_timeout", &d.BootTimeout, 30 * time.Minute, positive{},
			"Time that a machine may take from power-on to a connected agent."},
		{"deploy.session_grace", &d.SessionGrace, time.Minute, positive{},
			"Time that an agent may be disconnected before its machine is booted again; longer while others come back."},
		{"deploy.silence", &d.Silence, 30 * time.Minute, positive{},
			"Time that a connected agent may report nothing about its plan."},
		{"deploy.max_boots", &d.MaxBoots, 3, atLeast(1), "Boots of the agent for one job before the job fails."},
		{"deploy.installed_system_retries", &d.InstalledSystemRetries, 2, rule.Between(0, 10),
			"Power cycles for one job when the installed system starts instead of the agent. Then the machine is turned off and the job fails."},
		{"deploy.tries", &d.Tries, 2, atLeast(1),
			"Attempts of the same work in one boot when its failure may pass."},
	}
}

func stepSettings(s *Steps) []setting {
	return []setting{
		{"steps.clean_step_priority_override", &s.CleanStepPriorityOverride, nil, nil,
			"For the automated cleaning before a node becomes available."},
		{"steps.deploy_step_priority_override", &s.DeployStepPriorityOverride, nil, nil, "For deployments."},
		{"steps.inspect_step_priority_override", &s.InspectStepPriorityOverride, nil, nil, "For inspections."},
		{"steps.verify_step_priority_override", &s.VerifyStepPriorityOverride, nil, nil,
			"For the verification of a node by `manage`."},
	}
}

func inspectionSettings(i *Inspection) []setting {
	return []setting{
		{"inspection.default_hooks", &i.DefaultHooks,
			[]string{"ramdisk-error", "validate-interfaces", "ports", "architecture"}, nil,
			"Hooks that $default_hooks in inspection.hooks stands for."},
		{"inspection.hooks", &i.Hooks, []string{"$default_hooks", "memory", "cpus", "root-device", "parse-lldp",
			"local-link-connection"}, nil, "Hooks that run, in this order."},
		{"inspection.add_ports", &i.AddPorts, "all", nil,
			"Network interfaces that become ports: all, active (with an address), pxe (the one booted from) or disabled (none)."},
		{"inspection.keep_ports", &i.KeepPorts, "all", nil,
			"Ports that a node keeps: all, present (those that the machine has) or added (those that inspection.add_ports selects)."},
		{"inspection.update_pxe_enabled", &i.UpdatePXEEnabled, nil, nil,
			"Set pxe_enabled of existing ports to whether the machine booted from them."},
		{"inspection.overwrite_existing", &i.OverwriteExisting, nil, nil,
			"Overwrite what operators set. Otherwise inspections change only what inspections set."},
		{"inspection.cpu_capabilities", &i.CPUCapabilities, []string{"vmx:cpu_vt", "svm:cpu_vt", "aes:cpu_aes",
			"pse:cpu_hugepages", "pdpe1gb:cpu_hugepages_1g", "smx:cpu_txt"}, nil,
			"Capabilities that CPU flags stand for, as FLAG:CAPABILITY."},
		{"inspection.pci_device_alias", &i.PCIDeviceAlias, nil, nil,
			"Names under which PCI devices are counted, as VENDOR:PRODUCT:NAME with four hexadecimal digits each."},
		{"inspection.known_accelerators", &i.KnownAccelerators, nil, nil,
			"YAML file with a list pci_devices. Empty: the built-in list."},
		{"inspection.physical_network_cidr_map", &i.PhysicalNetworkCIDRMap, nil, nil,
			"Physical networks by the addresses of their machines, as CIDR:NAME."},
		{"inspection.disk_partitioning_spacing", &i.DiskPartitioningSpacing, true, nil,
			"Leave one gigabyte out of local_gb."},
		{"inspection.extra_hardware_strict", &i.ExtraHardwareStrict, nil, nil,
			"Drop extra hardware data that is not fully understood."},
		{"inspection.lldp_timeout", &i.LLDPTimeout, nil, nil,
			"Time that an inspection waits for LLDP on links with a carrier, in whole seconds up to 90s. 0s: use what arrived since the agent started."},
		{"inspection.rules_file", &i.RulesFile, nil, nil,
			"YAML list of inspection rules of this site. Read at the start; the API can't change them."},
		{"inspection.mask_secrets", &i.MaskSecrets, "always", oneOf{"always", "never", "sensitive"},
			"Hide passwords in the inventory from rules. always: from all. sensitive: from those not marked sensitive."},
	}
}

func limitSettings(l *Limits) []setting {
	// With fewer connections the clients of a fleet shut each other out.
	const least = atLeast(16)
	return []setting{
		{"limits.api_connections", &l.APIConnections, 4096, least, "Open connections to the REST API."},
		{"limits.api_connections_per_address", &l.APIConnectionsPerAddress, 1024, least,
			"The same from one address. Does not apply to api.trusted_proxies."},
		{"limits.agent_connections", &l.AgentConnections, 16384, least,
			"Open connections of agents. Each has one, and a second while it reconnects."},
		{"limits.agent_connections_per_address", &l.AgentConnectionsPerAddress, 256, least, "The same from one address."},
		{"limits.boot_connections", &l.BootConnections, 4096, least,
			"Open connections to the HTTP server of the provisioning network. An agent reads an image over up to 16."},
		{"limits.boot_connections_per_address", &l.BootConnectionsPerAddress, 128, least, "The same from one address."},
		{"limits.body_bytes", &l.BodyBytes, 256 << 20, nil,
			"Memory for the bodies of all requests to the API at one time, in bytes. At least 4 MiB more than limits.body_bytes_authenticated."},
		{"limits.body_bytes_authenticated", &l.BodyBytesAuthenticated, 224 << 20, nil,
			"Part of limits.body_bytes that only authenticated clients use. At least 128 MiB, the need of one request with a config drive."},
	}
}

func historySettings(h *History) []setting {
	const least, day = atLeast(10), 24 * time.Hour
	return []setting{
		{"history.requests_per_node", &h.RequestsPerNode, 2000, least, "Requests of people kept for each node."},
		{"history.requests_total", &h.RequestsTotal, 500_000, least, "Requests of people kept for all nodes."},
		{"history.requests_age", &h.RequestsAge, 730 * day, hours(1), "Age at which requests of people are removed."},
		{"history.reports_per_node", &h.ReportsPerNode, 1000, least, "Reports kept for each node."},
		{"history.reports_total", &h.ReportsTotal, 500_000, least, "Reports kept for all nodes."},
		{"history.reports_age", &h.ReportsAge, 180 * day, hours(1), "Age at which reports are removed."},
		{"history.erasures_age", &h.ErasuresAge, 3650 * day, hours(24),
			"Age at which reports of erased disks are removed."},
	}
}

func hardwareSettings(h *Hardware) []setting {
	out := []setting{{"hardware.enabled_types", &h.EnabledTypes, nil, nil, "Allowed hardware types."}}
	for _, kind := range h.kinds() {
		out = append(out,
			setting{"hardware.enabled_" + kind.name + "_interfaces", kind.enabled, nil, nil,
				"Allowed " + kind.name + " interfaces."},
			setting{"hardware.default_" + kind.name + "_interface", kind.standard, nil, nil,
				"Default " + kind.name + " interface."})
	}
	return out
}

// settings lists all settings without their sections.
func (c *Config) settings() (all []setting) {
	for _, s := range c.sections() {
		all = append(all, s.settings...)
	}
	return all
}
