package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRotationElsewhere: a wrong folder is told, and nothing is made in it.
func TestRotationElsewhere(t *testing.T) {
	empty := t.TempDir()
	none := filepath.Join(empty, "none")
	for _, c := range []struct{ args, want string }{
		{"ca rotate --data-dir " + empty, "no ingotd has worked there"},
		{"key rotate --data-dir " + empty, "no ingotd has worked there"},
		{"key rotate --data-dir " + none, "no ingotd has worked there"},
		{"ca --data-dir " + empty, "takes one argument, rotate"},
		{"key spin --data-dir " + empty, "there is only ingotd key rotate"},
	} {
		args := strings.Fields(c.args)
		cmd, _ := find(args)
		var out, errs bytes.Buffer
		if err := cmd.run(t.Context(), args[1:], nil, &out, &errs); err == nil ||
			!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ingotd %s: %v, want %q in one line", c.args, err, c.want)
		}
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v now (%v)", left, err)
	}
}
