package moving

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

type object = map[string]any

// cluster answers kubectl as the API of a cluster with Metal3 does, as far as the how-to asks.
type cluster struct {
	mu       sync.Mutex
	hosts    []any
	secrets  []any
	operator object // its deployment
	changes  []string
}

// operator is where its deployment is.
const operator = "/apis/apps/v1/namespaces/baremetal-operator-system/deployments/" + manager

const manager = "baremetal-operator-controller-manager"

func newCluster() *cluster {
	named := func(kind, namespace, name string, more object) object {
		o := object{"kind": kind, "metadata": object{"namespace": namespace, "name": name}}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	secret := func(namespace, password string) object {
		return named("Secret", namespace, "web7-bmc", object{"apiVersion": "v1", "data": object{
			"username": base64.StdEncoding.EncodeToString([]byte("admin")),
			"password": base64.StdEncoding.EncodeToString([]byte(password))}})
	}
	host := func(name string, spec object) object {
		return named("BareMetalHost", "metal3", name, object{"apiVersion": "metal3.io/v1alpha1", "spec": spec})
	}
	return &cluster{
		hosts:   []any{host("web7", object{"bmc": object{"credentialsName": "web7-bmc"}}), host("new", object{})},
		secrets: []any{secret("other", "another"), secret("metal3", "s3cret")},
		operator: named("Deployment", "baremetal-operator-system", manager, object{
			"apiVersion": "apps/v1", "spec": object{"replicas": 1, "template": object{"spec": object{
				"containers": []any{object{"name": "manager", "image": "operator"}}}}}}),
	}
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resources := func(version string, list ...any) object {
		return object{"kind": "APIResourceList", "groupVersion": version, "resources": list}
	}
	resource := func(name, kind string, verbs ...string) object {
		return object{"name": name, "singularName": strings.ToLower(kind), "kind": kind, "namespaced": true,
			"verbs": verbs}
	}
	group := func(name, version string) object {
		v := object{"groupVersion": name + "/" + version, "version": version}
		return object{"name": name, "versions": []any{v}, "preferredVersion": v}
	}
	lists := func(kind, version string, items []any) object {
		return object{"kind": kind + "List", "apiVersion": version, "items": items}
	}
	const metal3 = "metal3.io/v1alpha1"
	var answer any
	switch body, err := io.ReadAll(r.Body); {
	case err != nil:
	case r.URL.Path == operator+"/scale":
		answer = c.scale(r.Method, body)
	case r.URL.Path == operator && r.Method == http.MethodPatch:
		c.changes = append(c.changes, environment(body))
		answer = c.operator
	case r.Method == http.MethodGet:
		answer = object{
			"/api": object{"kind": "APIVersions", "versions": []any{"v1"}},
			"/apis": object{"kind": "APIGroupList", "groups": []any{group("apps", "v1"),
				group("metal3.io", "v1alpha1")}},
			"/api/v1":         resources("v1", resource("secrets", "Secret", "list")),
			"/apis/" + metal3: resources(metal3, resource("baremetalhosts", "BareMetalHost", "list")),
			"/apis/apps/v1": resources("apps/v1", resource("deployments", "Deployment", "get", "patch"),
				resource("deployments/scale", "Scale", "get", "patch", "update")),
			"/api/v1/secrets":                     lists("Secret", "v1", c.secrets),
			"/apis/" + metal3 + "/baremetalhosts": lists("BareMetalHost", metal3, c.hosts),
			operator:                              c.operator,
		}[r.URL.Path]
	}
	w.Header().Set("Content-Type", "application/json")
	if answer == nil {
		w.WriteHeader(http.StatusNotFound)
		answer = object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
			"message": r.Method + " " + r.URL.Path + " is not there"}
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone does not want it
}

// scale shows and sets the number of the operator's pods.
func (c *cluster) scale(method string, body []byte) any {
	spec := c.operator["spec"].(object)
	if method != http.MethodGet {
		var in struct{ Spec struct{ Replicas int } }
		if json.Unmarshal(body, &in) != nil {
			return nil
		}
		spec["replicas"] = in.Spec.Replicas
		c.changes = append(c.changes, fmt.Sprint("replicas ", in.Spec.Replicas))
	}
	return object{"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": c.operator["metadata"],
		"spec": object{"replicas": spec["replicas"]}}
}

// environment lists what a patch of a deployment sets for the container of the operator.
func environment(body []byte) string {
	var in struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Name string
						Env  []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return err.Error()
	}
	var set []string
	for _, c := range in.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			set = append(set, c.Name+" "+e.Name+"="+e.Value)
		}
	}
	slices.Sort(set)
	return strings.Join(set, ", ")
}

// TestMetal3 runs the how-to's commands for a site with Metal3: the passwords come from secrets of the cluster, and the
// operator gets Ingot's address while it is stopped.
func TestMetal3(t *testing.T) {
	kit.NeedPrograms(t, "jq")
	tree, err := debian.Unpack(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)), "kubernetes-client")
	if err != nil {
		t.Fatal(err)
	}
	theirs := bench.Start(t, nil)
	status, o := kit.Request(t, http.MethodPost, theirs.URL+"/v1/nodes", "1.82", object{"name": "metal3~web7",
		"driver": "ipmi", "driver_info": object{"ipmi_address": "192.0.2.7", "ipmi_password": "theirs"}})
	if status != http.StatusCreated {
		t.Fatalf("make a node: %d, %v", status, o)
	}
	// As Metal3 has it: a web server in front of Ironic has the certificate and knows the users.
	at, err := url.Parse(theirs.URL)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(at)
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "metal3" || password != "of the API" {
			w.Header().Set("WWW-Authenticate", `Basic realm="Ironic API"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	defer front.Close()
	c := newCluster()
	kubernetes := httptest.NewServer(c)
	defer kubernetes.Close()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	for name, text := range map[string]string{
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})),
		"kubeconfig": fmt.Sprintf(`{"clusters": [{"name": "c", "cluster": {"server": %q}}],
			"contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`, kubernetes.URL),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", openstack.Commands(t, howto,
		"http://ironic.example.org:6385", theirs.URL, "https://IRONIC:6385", front.URL, "--user NAME", "--user metal3",
		"OS_PASSWORD=...", "OS_PASSWORD='of the API'"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "INGOT_DATA_DIR="+data,
		"PATH="+filepath.Dir(tree.Program("kubectl"))+":"+filepath.Dir(made.Program(t, "ingot"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1 nodes taken over, 0 were here already") ||
		strings.Contains(string(out), "does not tell") {
		t.Errorf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, "hosts.yaml"))
	if err != nil || strings.Join(strings.Fields(string(got)), "") !=
		`{"metal3~web7":{"ipmi_password":"s3cret","redfish_password":"s3cret"}}` {
		t.Errorf("hosts.yaml is %s, %v", got, err)
	}
	if d := cmp.Diff([]string{"replicas 0",
		"manager IRONIC_ENDPOINT=https://ironic.NAMESPACE.svc:6385/v1/, manager IRONIC_NAME=",
		"replicas 1"}, c.changes); d != "" {
		t.Errorf("what changed in the cluster (-want +got):\n%s", d)
	}
	st, err := store.Open(t.Context(), store.Options{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	all, err := st.Nodes(t.Context(), store.Query{})
	if err != nil || len(all) != 1 || all[0].DriverInfo["ipmi_password"] != "s3cret" {
		t.Errorf("the node's password is not that of its host's secret: %v, %v", all, err)
	}
}
