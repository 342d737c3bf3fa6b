package packages

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestChartAsMetal3sIronic renders the chart as docs/howto/kubernetes.md says for Metal3, and starts ingotd in the
// container's image with the files, modes and environment that its pod has. Then it asks what Metal3's BareMetal
// Operator asks first, with what the operator finds in the secrets: the versions, and the list of drivers.
func TestChartAsMetal3sIronic(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "curl", "unshare", "nsenter", "chroot", "ip")
	all, err := render(t, chartSource, repository+`
nameOverride: ironic
store: {kind: ephemeral}
tls: {addresses: [172.22.0.2], names: [ironic.example]}
`)
	if err != nil {
		t.Fatal(err)
	}
	user := secret(t, all, "ironic-credentials", "username")
	password := secret(t, all, "ironic-credentials", "password")
	users := secret(t, all, "ironic-credentials", "htpasswd")
	name, hash, _ := strings.Cut(strings.TrimSpace(users), ":")
	if name != user || user != "ironic" || len(password) < 20 ||
		bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		t.Errorf("the user is %s, with a password of %d letters; htpasswd has %s", user, len(password), name)
	}
	authority := secret(t, all, "ironic-cacert", "tls.crt")
	checkCertificate(t, authority, secret(t, all, "ironic-cert", "tls.crt"))
	if o := find(all, "Secret", "ironic-cacert"); o.at("data", "tls.key") != nil {
		t.Error("the authority's key is given to clients")
	}

	root := unpackImage(t)
	write := func(path, content string, mode os.FileMode) { // as the kubelet does: root's, with the group of fsGroup
		t.Helper()
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, 0, 65532); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/ingot/config/ingotd.yaml", configOf(all), 0o644)
	write("etc/ingot/credentials/htpasswd", users, 0o440)
	write("etc/ingot/tls/tls.crt", secret(t, all, "ironic-cert", "tls.crt"), 0o440)
	write("etc/ingot/tls/tls.key", secret(t, all, "ironic-cert", "tls.key"), 0o440)
	write("usr/lib/ipxe/undionly.kpxe", "", 0o644)
	write("usr/lib/ipxe/snponly.efi", "", 0o644)
	for _, dir := range []string{"tmp", "usr/lib/ingot/ramdisk"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ca := filepath.Join(t.TempDir(), "tls.crt")
	if err := os.WriteFile(ca, []byte(authority), 0o600); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	cmd := exec.Command("unshare", "--net", "sh", "-c", `ip link set lo up
ip address add 192.0.2.7/24 dev lo
exec chroot --userspec=65532:65532 "$@"`, "sh", root, "/usr/bin/ingotd", "--config", "/etc/ingot/config/ingotd.yaml")
	cmd.Env, cmd.Stdout, cmd.Stderr = podEnv(t, set(all)), &out, &out
	cmd.Env[0] = "PATH=" + os.Getenv("PATH")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("ingotd:\n%s", &out)
		}
	})
	ask := func(path string, more ...string) string {
		args := append([]string{"--target", strconv.Itoa(cmd.Process.Pid), "--net", "curl", "--silent",
			"--max-time", "10", "--cacert", ca, "--resolve", "ironic.metal.svc:6385:192.0.2.7", "--write-out", "\n%{http_code}",
			"https://ironic.metal.svc:6385" + path}, more...)
		answer, _ := exec.Command("nsenter", args...).CombinedOutput()
		return string(answer)
	}
	kit.Eventually(t, 60*time.Second, "the readiness probe", func() bool {
		return strings.HasSuffix(ask("/ingot/v1/health"), "\n200")
	})
	if got := ask("/"); !strings.HasSuffix(got, "\n200") {
		t.Errorf("the liveness probe gets %s", got)
	}
	if got := ask("/v1/drivers"); !strings.HasSuffix(got, "\n401") {
		t.Errorf("the list of drivers without a password: %s", got)
	}
	login := []string{"--user", user + ":" + password, "--header", "X-OpenStack-Ironic-API-Version: 1.89"}
	if got := ask("/v1/", login...); !strings.HasSuffix(got, "\n200") {
		t.Errorf("the versions: %s", got)
	}
	if got := ask("/v1/drivers", login...); !strings.HasSuffix(got, "\n200") || !strings.Contains(got, `"redfish"`) ||
		!strings.Contains(got, `"hosts":["ironic-0"]`) {
		t.Errorf("the list of drivers: %s", got)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ingotd ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("ingotd does not end")
	}
}

// checkCertificate: the certificate is the authority's, and for all names by which clients come.
func checkCertificate(t *testing.T, authority, certificate string) {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(authority)) {
		t.Fatal("the authority is no certificate")
	}
	block, _ := pem.Decode([]byte(certificate))
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ironic", "ironic.metal", "ironic.metal.svc", "ironic.metal.svc.cluster.local",
		"ironic.example", "172.22.0.2"} {
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("the certificate for %s: %v", name, err)
		}
	}
	if len(c.IPAddresses) != 1 || !c.IPAddresses[0].Equal(net.ParseIP("172.22.0.2")) {
		t.Errorf("addresses %v", c.IPAddresses)
	}
}
