package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal: the user's side, and the program's.
func terminal(t *testing.T) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { program.Close() })
	return user, program
}

// imageAndDisk are files: a disk image with its digest, and a disk with something on it.
func imageAndDisk(t *testing.T) (image, sum, disk string) {
	t.Helper()
	b := make([]byte, 8<<20)
	b[446+4], b[446+9], b[446+13], b[446+15] = 0x83, 8, 1, 0
	b[510], b[511] = 0x55, 0xaa
	b[5<<20] = 1
	dir := t.TempDir()
	image, disk = filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := os.WriteFile(image, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, bytes.Repeat([]byte{0xa5}, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return image, fmt.Sprintf("%x", sha256.Sum256(b)), disk
}

func TestOverwrite(t *testing.T) {
	image, sum, full := imageAndDisk(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		answer string // "": there is no terminal
		asked  bool
		want   string // of the error; "": written
	}{
		{"no terminal", []string{"--sha256", sum, "--disk", full}, "", false, "--yes"},
		{"an empty disk", []string{"--sha256", sum, "--disk", empty}, "", false, ""},
		{"no", []string{"--sha256", sum, "--disk", full}, "n\n", true, "nothing was written"},
		{"only Enter", []string{"--sha256", sum, "--disk", full}, "\n", true, "nothing was written"},
		{"a wrong flag", []string{"--sha256", "ab", "--disk", full}, "y\n", false, "--sha256"},
		{"no digest", []string{"--disk", full}, "y\n", false, "--allow-unverified"},
		{"a difference", []string{"--sha256", sum, "--difference", "x", "--disk", full}, "y\n", false, "--difference"},
		{"a key for what can't be signed",
			[]string{"--key", "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3", "--disk", full}, "y\n", false,
			"not a published image"},
		{"yes", []string{"--sha256", sum, "--disk", full}, "y\n", true, ""},
		{"told before", []string{"--sha256", sum, "--disk", full, "--yes"}, "", false, ""},
	} {
		var stdin io.Reader = strings.NewReader("y\n")
		if c.answer != "" {
			user, program := terminal(t)
			if _, err := user.WriteString(c.answer); err != nil {
				t.Fatal(err)
			}
			stdin = program
		}
		var out, errs bytes.Buffer
		err := write(t.Context(), append([]string{"--image", image, "--quiet"}, c.args...), stdin, &out, &errs)
		if asked := strings.Contains(errs.String(), "Overwrite it?"); asked != c.asked ||
			(err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, asked %v, want %q, %v", c.name, err, asked, c.want, c.asked)
		}
	}
}

// onQuestion is called when something is asked.
type onQuestion func()

func (f onQuestion) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("Overwrite it?")) {
		f()
	}
	return len(b), nil
}

func TestStopAtTheQuestion(t *testing.T) {
	image, sum, disk := imageAndDisk(t)
	_, program := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := onQuestion(cancel)
	err := write(ctx, []string{"--image", image, "--sha256", sum, "--disk", disk, "--quiet"}, program, io.Discard,
		asked)
	if err == nil || err.Error() != "stopped; nothing was written" {
		t.Errorf("stopped at the question: %v", err)
	}
}

func TestFailureReportsTheDisk(t *testing.T) {
	image, _, disk := imageAndDisk(t)
	var out, errs bytes.Buffer
	args := []string{"--disk", disk, "--quiet", "--yes", "--sha256", strings.Repeat("0", 64), "--image"}
	err := write(t.Context(), append(args, "/no/such/image"), nil, &out, &errs)
	if err == nil || !strings.Contains(err.Error(), "was not touched") {
		t.Errorf("no image: %v", err)
	}
	err = write(t.Context(), append(args, image), nil, &out, &errs)
	if err == nil || !strings.Contains(err.Error(), "will not boot") || !strings.Contains(err.Error(), "what to do") {
		t.Errorf("a wrong digest: %v", err)
	}
}

// TestArgumentsFromStandardInput: they come alone, and say all about the image.
func TestArgumentsFromStandardInput(t *testing.T) {
	image, sum, disk := imageAndDisk(t)
	files := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(image))))
	defer files.Close()
	text := fmt.Sprintf(`{"image_source":"%s/image","image_checksum":%q}`, files.URL, sum)
	args := []string{"--arguments", "-", "--disk", disk, "--quiet", "--json"}
	for _, c := range []struct {
		more  []string
		stdin string
		want  string // of the error; "": written
	}{
		{nil, text, "give --yes"},
		{[]string{"--yes"}, `{"image_source":"` + image + `"}`, "the arguments of write_image name"},
		{[]string{"--yes"}, "{x", "invalid character"},
		{[]string{"--yes", "--sha256", sum}, text, "--sha256 and --arguments don't go together"},
		{[]string{"--dry-run"}, text, "--dry-run and --arguments don't go together"},
		{[]string{"--yes"}, text, ""},
	} {
		var out, errs bytes.Buffer
		err := write(t.Context(), append(args, c.more...), strings.NewReader(c.stdin), &out, &errs)
		if (err == nil) != (c.want == "") || err != nil && strings.Count(err.Error(), c.want) != 1 {
			t.Errorf("%q: %v, want %q once", c.more, err, c.want)
		}
	}
}

func TestEmptyCertificates(t *testing.T) {
	image, sum, disk := imageAndDisk(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{ca, "/dev/null"} {
		err := write(t.Context(),
			[]string{"--image", image, "--sha256", sum, "--disk", disk, "--quiet", "--yes", "--ca", file}, nil,
			io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), file+" is empty") ||
			!strings.Contains(err.Error(), "what to do") {
			t.Errorf("--ca %s: %v", file, err)
		}
	}
}

// TestTrace draws a write, and draws it again from its result as JSON, as an operator does with that of a step.
func TestTrace(t *testing.T) {
	image, sum, disk := imageAndDisk(t)
	picture := filepath.Join(t.TempDir(), "trace.html")
	args := []string{"--image", image, "--sha256", sum, "--disk", disk, "--quiet", "--yes"}
	drawn := func(b []byte) bool {
		return bytes.Contains(b, []byte("<title>Trace of an image write</title>")) &&
			bytes.Contains(b, []byte("<path ")) && bytes.Contains(b, []byte(disk))
	}
	var out, errs bytes.Buffer
	if err := write(t.Context(), append(args, "--trace", picture), nil, &out, &errs); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(picture)
	if err != nil || !drawn(page) {
		t.Errorf("%v\n%s", err, page)
	}
	if !strings.Contains(out.String(), "WAITS FOR INPUT") || !strings.Contains(out.String(), "holds the image now") {
		t.Errorf("no table: %s", out.String())
	}

	before, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{picture, disk, filepath.Join(t.TempDir(), "no", "such", "folder")} {
		err := write(t.Context(), append(args, "--trace", name), nil, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "create the file for the trace") {
			t.Errorf("--trace %s: %v", name, err)
		}
	}
	if after, err := os.ReadFile(disk); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk was touched: %v", err)
	}
	if err := write(t.Context(), append(args, "--trace", picture+"2", "--dry-run"), nil, io.Discard,
		io.Discard); err == nil || !strings.Contains(err.Error(), "--dry-run") {
		t.Errorf("a dry run: %v", err)
	}
	failed := picture + "3"
	if err := write(t.Context(), append(args, "--trace", failed, "--sha256", strings.Repeat("0", 64)), nil, io.Discard,
		io.Discard); err == nil {
		t.Error("a wrong digest is accepted")
	}
	if _, err := os.Stat(failed); err == nil {
		t.Error("a failed write leaves an empty picture")
	}

	out.Reset()
	errs.Reset()
	if err := write(t.Context(), append(args, "--trace", picture+"4", "--json"), nil, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(errs.String(), "WAITS FOR INPUT") {
		t.Errorf("no table beside JSON: %s", errs.String())
	}
	steps := `{"job": null, "past": [{"steps": [{"args": {"trace": true}, "result": ` + out.String() + `}]}]}`
	var again bytes.Buffer
	if err := drawTrace(nil, strings.NewReader(steps), &again, &errs); err != nil || !drawn(again.Bytes()) {
		t.Errorf("%v\n%s", err, again.String())
	}
	for _, bad := range []string{"", "[]", `{"trace": true}`, `{"result": {"trace": null}}`, `{"trace": {}}`,
		strings.Repeat(" ", maxTraced) + steps} {
		if err := drawTrace(nil, strings.NewReader(bad), io.Discard, io.Discard); err == nil {
			t.Errorf("%.80q is a trace", bad)
		}
	}
	if err := drawTrace([]string{"steps.json"}, strings.NewReader(steps), io.Discard, io.Discard); err == nil {
		t.Error("an argument is ignored")
	}
}
