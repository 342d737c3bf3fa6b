package kit

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Registry runs Debian's docker-registry on a port of this machine for the length of the test and gives host and port.
// With a password, user "pub" must log in with it.
func Registry(t testing.TB, password string) string {
	t.Helper()
	NeedPrograms(t, "docker-registry")
	dir := t.TempDir()
	addr := FreeAddr(t) // the registry does not tell which port it got
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	conf := fmt.Sprintf(
		"version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q, secret: test}\n", filepath.Join(dir, "data"), addr)
	if password != "" {
		h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		conf += fmt.Sprintf("auth: {htpasswd: {realm: test, path: %s}}\n", write("htpasswd", "pub:"+string(h)))
	}
	var log bytes.Buffer
	cmd := exec.Command("docker-registry", "serve", write("config.yml", conf))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the registry says:\n%s", &log)
		}
	})
	Eventually(t, 2*time.Minute, "the registry answers", func() bool {
		r, err := http.Get("http://" + addr + "/v2/")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	return addr
}
