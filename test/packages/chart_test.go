package packages

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

const chartSource = source + "/tools/package/chart"

// tools are the programs of these tests, built once.
var tools = sync.OnceValues(func() (dir string, err error) {
	if dir, err = filepath.Abs(source + "/build/test/packages/bin"); err != nil {
		return "", err
	}
	for _, build := range [][]string{{"-C", "helm", "build", "-o", dir + "/helm", "."},
		{"-C", source, "build", "-o", dir + "/ingotd", "./conductor/cmd/ingotd"}} {
		if out, err := exec.Command("go", build...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %s: %w\n%s", strings.Join(build, " "), err, out)
		}
	}
	return dir, nil
})

func tool(t *testing.T, name string) string {
	t.Helper()
	dir, err := tools()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// object is an object of Kubernetes, or a part of one.
type object map[string]any

// at follows keys, and numbers of lists, into an object.
func (o object) at(path ...any) any {
	var v any = map[string]any(o)
	for _, key := range path {
		switch k := key.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			list, _ := v.([]any)
			if k >= len(list) {
				return nil
			}
			v = list[k]
		}
	}
	return v
}

func (o object) text(path ...any) string { return text(o.at(path...)) }

// list are the objects in a list.
func (o object) list(path ...any) (all []object) {
	list, _ := o.at(path...).([]any)
	for _, v := range list {
		m, _ := v.(map[string]any)
		all = append(all, m)
	}
	return all
}

// render renders the chart as it is in the source; err has what Helm says.
func render(t *testing.T, chart, values string) (all []object, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	cmd := exec.Command(tool(t, "helm"), "-values", file, "-release", "rack", "-namespace", "metal", chart)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, errs.String())
	}
	return all, json.Unmarshal([]byte(out.String()), &all)
}

// find is the object of a kind with a name, or nil.
func find(all []object, kind, name string) object {
	for _, o := range all {
		if o.text("kind") == kind && o.text("metadata", "name") == name {
			return o
		}
	}
	return nil
}

// secret is a value of a secret.
func secret(t *testing.T, all []object, name, key string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(find(all, "Secret", name).text("data", key))
	if err != nil || len(b) == 0 {
		t.Fatalf("secret %s has no %s (%v)", name, key, err)
	}
	return string(b)
}

const repository = "image: {repository: registry.example/ingotd}\n"

// sites are values of the chart, and what differs between them.
var sites = map[string]struct {
	values string
	data   string // where the data directory is
	ports  []string
	config []string // lines of the configuration that ingotd makes of it
}{
	"SQLite": {repository + `
provisioning: {interface: eth1, dhcp: server, rangeStart: 10.0.0.10, rangeEnd: 10.0.0.99, dns: [10.0.0.2], gateway: 10.0.0.254}
`, "claim", []string{"api/6385", "agents/6386", "boot-http/8080", "tftp/69", "dhcp/67"},
		[]string{"url: 'sqlite:'", "dhcp: server", "interface: eth1", "range_end: 10.0.0.99", "auth: http_basic",
			"tls_cert: /etc/ingot/tls/tls.crt", "- 10.0.0.2", "gateway: 10.0.0.254", "tftp: true", "images_dir: \"\""}},
	"ephemeral": {repository + "store: {kind: ephemeral}\nfiles: {loaders: false, authorities: false, ramdisk: false}\nprovisioning: {httpsPort: 8443}\n",
		"emptyDir", []string{"api/6385", "agents/6386", "boot-http/8080", "boot-https/8443"},
		[]string{"ephemeral: true", "dhcp: \"off\"", "tftp: false", "address: 192.0.2.7", "https_port: 8443"}},
	"PostgreSQL": {repository + `
replicas: 3
store:
  kind: postgresql
  volume: {enabled: false}
  postgresql:
    url: postgres://ingot@db.example/ingot?sslmode=verify-full&sslrootcert=/etc/ingot/database/ca.crt
    passwordSecret: database
    keySecret: store-key
provisioning: {interface: eth1, dhcp: proxy}
`, "emptyDir", []string{"api/6385", "agents/6386", "conductors/6387", "boot-http/8080", "tftp/69", "proxydhcp/4011"},
		[]string{"url: postgres://ingot@db.example/ingot?sslmode=verify-full", "dhcp: proxy",
			"password_file: /etc/ingot/database/password"}},
	"all values": {`
nameOverride: ironic
image: {repository: registry.example:5000/ingotd, tag: "1.2.3", pullPolicy: Always, pullSecrets: [pull]}
store: {volume: {size: 1.5Ti, storageClass: fast}}
api: {port: 16385, hostNames: [ingot.example]}
auth: {existingSecret: users}
tls: {existingSecret: certificate}
service: {type: LoadBalancer, annotations: {a.example/b: "true"}}
provisioning: {interface: br0, address: 10.0.0.1, dhcp: off, httpPort: 18080}
files:
  ramdisk: {persistentVolumeClaim: {claimName: ramdisk, readOnly: true}}
  images: {nfs: {server: nas.example, path: /images}}
  authorities: {configMap: {name: authorities}}
settings:
  log_format: json
  deploy: {fast_track: true}
  netboot: {lease_time: 2h}
  api: {public_url: "https://ingot.example:16385"}
resources: {limits: {memory: 1Gi}}
nodeSelector: {rack: "1"}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
priorityClassName: system-cluster-critical
podAnnotations: {c.example/d: e}
podLabels: {team: metal}
`, "claim", []string{"api/16385", "agents/6386", "boot-http/18080", "tftp/69"},
		[]string{"listen: :16385", "log_format: json", "fast_track: true", "lease_time: 2h0m0s",
			"images_dir: /srv/images", "public_url: https://ingot.example:16385", "address: 10.0.0.1", "- ingot.example", "- ironic.metal.svc"}},
	"without TLS and users": {repository + "tls: {enabled: false}\nauth: {enabled: false}\n", "claim",
		[]string{"api/6385", "agents/6386", "boot-http/8080", "tftp/69"},
		[]string{"auth: none", "insecure_listen: true", "tls_cert: \"\""}},
}

// TestChart renders the chart for each kind of site. Kubernetes knows every field, its parts fit together, and ingotd
// accepts the configuration as the pod gives it.
func TestChart(t *testing.T) {
	known := kubernetesSchemas(t)
	for name, site := range sites {
		t.Run(name, func(t *testing.T) {
			all, err := render(t, chartSource, site.values)
			if err != nil {
				t.Fatal(err)
			}
			kinds := map[string]int{}
			for _, o := range all {
				if kinds[o.text("kind")]++; o.text("kind") == "Notes" {
					continue
				}
				for _, fault := range known.check(o) {
					t.Errorf("%s %s: %s", o.text("kind"), o.text("metadata", "name"), fault)
				}
				if got := o.text("metadata", "namespace"); got != "metal" {
					t.Errorf("%s %s is in namespace %q", o.text("kind"), o.text("metadata", "name"), got)
				}
			}
			if kinds["StatefulSet"] != 1 || kinds["Service"] != 2 || kinds["ConfigMap"] != 1 || kinds["Notes"] != 1 {
				t.Fatalf("the chart makes %v", kinds)
			}
			checkPod(t, all, site.data, site.ports)
			effective := accepted(t, all)
			for _, want := range site.config {
				if !strings.Contains(effective, want) {
					t.Errorf("ingotd's configuration lacks %q; the chart's is\n%s", want, configOf(all))
				}
			}
		})
	}
	// The check itself finds what it is for.
	for fault, change := range map[string]func(object){
		"there is no field hostNetwerk": func(o object) { pod(o)["hostNetwerk"] = true },
		"replicas: 2 is of type string": func(o object) { o.at("spec").(map[string]any)["replicas"] = "2" },
		"containers is missing":         func(o object) { delete(pod(o), "containers") },
		"Kubernetes has no kind":        func(o object) { o["apiVersion"] = "apps/v0" },
	} {
		all, err := render(t, chartSource, repository)
		if err != nil {
			t.Fatal(err)
		}
		o := find(all, "StatefulSet", "rack")
		change(o)
		if got := strings.Join(known.check(o), "\n"); !strings.Contains(got, fault) {
			t.Errorf("a changed object: %q, want %q", got, fault)
		}
	}
}

func pod(o object) object { return o.at("spec", "template", "spec").(map[string]any) }

func set(all []object) object {
	for _, o := range all {
		if o.text("kind") == "StatefulSet" {
			return o
		}
	}
	return nil
}

// checkPod compares the pod with the other objects, and with what ingotd needs.
func checkPod(t *testing.T, all []object, data string, ports []string) {
	t.Helper()
	s := set(all)
	p, labels := pod(s), object(s.at("spec", "template", "metadata", "labels").(map[string]any))
	c := p.list("containers")[0]
	for _, o := range all {
		selector, _ := o.at("spec", "selector").(map[string]any)
		if m, ok := selector["matchLabels"].(map[string]any); ok {
			selector = m
		}
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s %s selects %s=%v, the pods have %v", o.text("kind"), o.text("metadata", "name"), key, value, labels[key])
			}
		}
	}
	if find(all, "Service", s.text("spec", "serviceName")).text("spec", "clusterIP") != "None" {
		t.Errorf("there is no headless service %s", s.text("spec", "serviceName"))
	}
	if p["hostNetwork"] != true || p["enableServiceLinks"] != false || p["automountServiceAccountToken"] != false {
		t.Errorf("the pod has hostNetwork %v, enableServiceLinks %v, automountServiceAccountToken %v", p["hostNetwork"],
			p["enableServiceLinks"], p["automountServiceAccountToken"])
	}
	as := object(p.at("securityContext").(map[string]any))
	if got := fmt.Sprint(as["runAsUser"], as["fsGroup"]); got != "65532 65532" {
		t.Errorf("the pod's user and group are %s", got)
	}
	if got := fmt.Sprint(c.at("securityContext", "capabilities")); got != "map[add:[NET_BIND_SERVICE NET_RAW] drop:[ALL]]" {
		t.Errorf("capabilities are %s", got)
	}
	var have []string
	for _, port := range c.list("ports") {
		have = append(have, fmt.Sprintf("%s/%v", port["name"], port["containerPort"]))
		if len(port.text("name")) > 15 || port["containerPort"] != port["hostPort"] {
			t.Errorf("port %v", port)
		}
	}
	if !slices.Equal(have, ports) {
		t.Errorf("ports %v, want %v", have, ports)
	}
	volumes := map[string]object{}
	for _, v := range p.list("volumes") {
		volumes[v.text("name")] = v
	}
	for _, v := range s.list("spec", "volumeClaimTemplates") {
		volumes[v.text("metadata", "name")] = object{"claim": v}
	}
	for _, m := range c.list("volumeMounts") {
		v := volumes[m.text("name")]
		if v == nil {
			t.Errorf("there is no volume %s for %s", m.text("name"), m.text("mountPath"))
		}
		delete(volumes, m.text("name"))
		if m.text("mountPath") == "/var/lib/ingot" {
			if _, ok := v[data]; !ok || m["readOnly"] == true {
				t.Errorf("the data directory is %v, want %s", v, data)
			}
		}
		if source, ok := v["secret"].(map[string]any); ok && source["defaultMode"] != float64(0o440) {
			t.Errorf("secret %s has mode %v, want 0440: the group of ingotd reads it, others don't", v["name"], source["defaultMode"])
		}
	}
	if len(volumes) > 0 {
		t.Errorf("volumes that nothing uses: %v", volumes)
	}
	scheme := "HTTP"
	if strings.Contains(configOf(all), "tls_cert") {
		scheme = "HTTPS"
	}
	for probe, path := range map[string]string{"startupProbe": "/", "livenessProbe": "/",
		"readinessProbe": "/ingot/v1/health"} {
		get := object(c.at(probe, "httpGet").(map[string]any))
		if get.text("path") != path || get.text("port") != "api" || get.text("scheme") != scheme {
			t.Errorf("%s asks %v, want %s %s", probe, get, scheme, path)
		}
	}
}

func configOf(all []object) string {
	for _, o := range all {
		if o.text("kind") == "ConfigMap" {
			return o.text("data", "ingotd.yaml")
		}
	}
	return ""
}

// accepted has ingotd check the configuration, in the environment that the pod has on a host with the address
// 192.0.2.7. It returns what ingotd makes of it.
func accepted(t *testing.T, all []object) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ingotd.yaml")
	if err := os.WriteFile(file, []byte(configOf(all)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool(t, "ingotd"), "--config", file, "--print-config")
	cmd.Env = podEnv(t, set(all))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ingotd refuses the configuration: %v\n%s\n%s", err, out, configOf(all))
	}
	return string(out)
}

// podEnv is the environment of a pod's only container.
func podEnv(t *testing.T, s object) []string {
	t.Helper()
	env := []string{"PATH=/usr/bin:/bin"}
	for _, v := range pod(s).list("containers")[0].list("env") {
		value := ""
		switch from := v.text("valueFrom", "fieldRef", "fieldPath"); from {
		case "metadata.name":
			value = s.text("metadata", "name") + "-0"
		case "status.hostIP":
			value = "192.0.2.7"
		default:
			if v.text("valueFrom", "secretKeyRef", "key") != "store-key" {
				t.Fatalf("variable %v", v)
			}
			value = base64.StdEncoding.EncodeToString(make([]byte, 32))
		}
		env = append(env, v.text("name")+"="+value)
	}
	return env
}

// TestChartArchive: the packed chart is rendered like its source, and its pods have the image that is packed beside it.
func TestChartArchive(t *testing.T) {
	dir := packages(t)
	all, err := render(t, one(t, dir, "ingot-*.tgz"), repository)
	if err != nil {
		t.Fatal(err)
	}
	var index struct{ Manifests []pointer }
	if err := json.Unmarshal(layoutFiles(t, one(t, dir, "ingotd-*-oci.tar"))["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	want := "registry.example/ingotd:" + index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]
	if got := pod(set(all)).list("containers")[0].text("image"); got != want {
		t.Errorf("the image is %s, want %s", got, want)
	}
	if got := set(all).text("metadata", "labels", "helm.sh/chart"); got == "" || strings.Contains(got, "0.0.0") {
		t.Errorf("the chart is %s", got)
	}
	kit.Run(t, "tar", "--extract", "--to-stdout", "--file", one(t, dir, "ingot-*.tgz"), "ingot/LICENSE")
}

// TestChartRefuses wrong values, each with a sentence about it.
func TestChartRefuses(t *testing.T) {
	const postgres = repository + "store: {kind: postgresql, postgresql: {url: 'postgres://ingot@db/ingot', keySecret: k}}\n"
	if _, err := render(t, chartSource, postgres); err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string]string{
		"":                                                              "image.repository: push the container image to a registry",
		repository + "replica: 2":                                       "replica",
		repository + "replicas: 0":                                      "/replicas",
		repository + "replicas: 2":                                      "replicas: 2 conductors need store.kind postgresql",
		repository + "store: {kind: mysql}":                             "'sqlite', 'ephemeral', 'postgresql'",
		repository + "store: {kind: postgresql}":                        "store.postgresql.url: say which database",
		repository + "store: {volume: {size: big}}":                     `store.volume.size: "big" is not a size such as 10Gi`,
		repository + "store: {volume: {enabled: false}}":                "store.kind to ephemeral",
		repository + "store: {postgresql: {keySecret: k}}":              "is for store.kind postgresql, not sqlite",
		strings.Replace(postgres, "ingot@", "ingot:hush@", 1):           "leave the password out of the address",
		strings.Replace(postgres, ", keySecret: k", "", 1):              "kubectl -n metal create secret generic ingot-store-key",
		repository + "nameOverride: Ironic":                             "nameOverride: \"Ironic\" is not lower-case",
		repository + "auth: {username: 'a:b'}":                          `auth.username: "a:b" is not letters`,
		repository + "provisioning: {dhcp: server, interface: e}":       "provisioning.rangeStart: mode server needs",
		repository + "provisioning: {dhcp: proxy}":                      "provisioning.interface: name the host's interface",
		repository + "provisioning: {dhcp: yes}":                        "/provisioning/dhcp",
		repository + "provisioning: {gateway: router}":                  `provisioning.gateway: "router" is not an IPv4 address`,
		repository + "provisioning: {dns: [a]}":                         `provisioning.dns: "a" is not an IPv4 address`,
		postgres + "provisioning: {address: 10.0.0.1}\nreplicas: 2":     "provisioning.address: is that of one host",
		repository + "tls: {enabled: false}\nservice: {type: NodePort}": "sends passwords over other networks",
		repository + "settings: {store: {key: hush}}":                   "settings.store.key: is set by store.postgresql.keySecret",
		repository + "settings: {netboot: {interface: e}}":              "settings.netboot.interface: is set by provisioning.interface",
		repository + "settings: {api: {tls_cert: /c}}":                  "settings.api.tls_cert: is set by tls",
		repository + "files: {ramdisk: {emptyDir: {}, hostPath: {}}}":   "/files/ramdisk",
		repository + "api: {port: 70000}":                               "/api/port",
	} {
		if _, err := render(t, chartSource, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %q: %v\nwant %q", values, err, want)
		} else if strings.Contains(err.Error(), "hush") {
			t.Errorf("values %q: the error shows a password: %v", values, err)
		}
	}
}
