package oscloud_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
)

// TestCloudLogsInOnce: however many ask at once; and again after a service refused the token, with the password that
// the file has then.
func TestCloudLogsInOnce(t *testing.T) {
	sim := cloudsim.New(t)
	file := sim.File(t, "lab")
	c := oscloud.NewCloud(file, "lab")
	tokens := make([]string, 20)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			var err error
			if tokens[i], err = c.Login(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(tokens)) != 1 || len(sim.Requests()) != 1 {
		t.Errorf("the tokens %q", tokens)
	}
	sim.SetPassword("a new one")
	sim.WriteFile(t, file, "lab", "a new one")
	c.Forget("another token")
	if again, err := c.Login(t.Context()); err != nil || again != tokens[0] {
		t.Errorf("after another token was refused: %q, %v", again, err)
	}
	c.Forget(tokens[0])
	if again, err := c.Login(t.Context()); err != nil || again == tokens[0] {
		t.Errorf("after the token was refused: %q, %v", again, err)
	}
}

// TestSecretsMayBeInSecureYAML, and a region chooses among the catalog's endpoints.
func TestSecretsMayBeInSecureYAML(t *testing.T) {
	sim := cloudsim.New(t)
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	sim.WriteFile(t, file, "lab", "x")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "      password: x\n", "", 1)
	for name, text := range map[string]string{"clouds.yaml": text,
		"secure.yaml": "clouds: {lab: {auth: {password: " + cloudsim.Password + "}}}\n"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sc, err := oscloud.NewCloud(file, "lab").Service(t.Context(), "compute", "Nova")
	if err != nil || sc.Endpoint != sim.URL+"/compute/v2.1/" {
		t.Fatalf("Nova is at %v, %v", sc, err)
	}
	for from, to := range map[string]string{"region_name: one": "region_name: nowhere",
		"    auth:": "    interface: internal\n    auth:"} {
		if err := os.WriteFile(file, []byte(strings.Replace(text, from, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := oscloud.NewCloud(file, "lab").Service(t.Context(), "compute", "Nova")
		var missing *oscloud.CloudError
		if !errors.As(err, &missing) || !missing.Missing ||
			!strings.Contains(err.Error(), "no service of type compute") {
			t.Errorf("with %s: %v", to, err)
		}
	}
}
