package netboot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/segment"
)

var isoLoaders = []string{"shimx64.efi", "grubx64.efi", "isolinux.bin", "ldlinux.c32"}

// newImageRig is a rig whose ramdisk can be made an image, and a node whose machine is to boot from one.
func newImageRig(t testing.TB, change func(*Config)) (*rig, *node.Node) {
	t.Helper()
	r := newRig(t, Off, func(c *Config) {
		c.ImageKey = []byte("key")
		if change != nil {
			change(c)
		}
	})
	r.ramdisk("the kernel", "the initramfs", isoLoaders...)
	return r, r.node(node.DeployWait, true, func(n *node.Node) {
		n.Boot.Media = true
		n.DriverInfo = map[string]any{"kernel_append_params": "a=b"}
	})
}

// address returns the path of a node's boot image.
func (r *rig) address(n *node.Node) (path, hash string) {
	r.t.Helper()
	image, hash, err := r.s.BootImage(r.t.Context(), r.load(n))
	if err != nil {
		r.t.Fatal(err)
	}
	u, err := url.Parse(image.Address)
	if err != nil || u.RawQuery != "" || !strings.HasSuffix(u.Path, ".iso") || len(image.Address) > 255 {
		r.t.Fatalf("a controller may decline the address %q: %v", image.Address, err)
	}
	return u.Path, hash
}

// TestBootImage: the image of a node's boot has its token where no kernel logs it, is served by ranges, whole and by
// HEAD, and is the same from a conductor that was restarted.
func TestBootImage(t *testing.T) {
	r, n := newImageRig(t, nil)
	path, hash := r.address(n)
	resp := r.get(path, "192.0.2.9")
	whole := body(t, resp)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" ||
		resp.Header.Get("Accept-Ranges") != "bytes" || resp.ContentLength != int64(len(whole)) {
		t.Fatalf("GET = %d, %v", resp.StatusCode, resp.Header)
	}
	iso, err := iso9660.Open(strings.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string { return string(must(fs.ReadFile(iso, name))) }
	params := read("boot/node")
	token := regexp.MustCompile(`ingot\.token=(\S+)`).FindStringSubmatch(params)
	if token == nil || !strings.HasPrefix(token[1], n.UUID+".") || !strings.Contains(params, "ingot.conductor="+
		r.s.cfg.Conductor+" ingot.ca="+r.s.cfg.CA) {
		t.Fatalf("the node's part is %q", params)
	}
	if sum := sha256.Sum256([]byte(token[1])); hex.EncodeToString(sum[:]) != hash {
		t.Error("the token in the image is not that of the hash")
	}
	if read("boot/vmlinuz") != "the kernel" || read("boot/initrd") != "the initramfs" {
		t.Error("kernel or ramdisk differ")
	}
	for _, name := range []string{"boot/grub/grub.cfg", "isolinux/isolinux.cfg"} {
		if text := read(name); !strings.Contains(text, "console=ttyS0,115200n8 a=b\n") ||
			strings.Contains(text, "token") {
			t.Errorf("%s = %q", name, text)
		}
	}

	for _, tt := range []struct{ asked, want string }{{"bytes=0-0", whole[:1]},
		{"bytes=32768-34815", whole[32768:34816]}, {"bytes=-5", whole[len(whole)-5:]},
		{"bytes=100000-", whole[100000:]}} {
		resp := r.get(path, "192.0.2.9", "Range", tt.asked, "If-Range", resp.Header.Get("ETag"))
		if got := body(t, resp); resp.StatusCode != http.StatusPartialContent || got != tt.want {
			t.Errorf("%s = %d, %d bytes", tt.asked, resp.StatusCode, len(got))
		}
	}
	if got := body(t, r.get(path, "192.0.2.9", "Range", "bytes=0-0", "If-Range", `"other"`)); got != whole {
		t.Error("a part was served of another version")
	}
	head := httptest.NewRecorder()
	r.s.Handler().ServeHTTP(head, httptest.NewRequest("HEAD", path, nil))
	if head.Code != http.StatusOK || head.Body.Len() > 0 ||
		head.Header().Get("Content-Length") != resp.Header.Get("Content-Length") {
		t.Errorf("HEAD = %d, %v", head.Code, head.Header())
	}

	again, err := New(r.st, r.s.cfg, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	defer again.files.close()
	r.s = again
	if got := body(t, r.get(path, "192.0.2.9")); got != whole {
		t.Error("a conductor that was restarted serves another image")
	}
	if marks := r.marksOf(n); strings.Count(marks, node.MarkMediaRead) != 2 ||
		strings.Count(marks, node.MarkRamdisk) != 2 { // of each conductor
		t.Errorf("the time line is %q", marks)
	}
	counted, err := r.st.Marks(t.Context(), n.UUID, "job")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("192.0.2.9 has read %d bytes in 1 requests", len(whole))
	if !slices.ContainsFunc(counted, func(m node.Mark) bool { return m.Name == node.MarkRamdisk && m.Detail == want }) {
		t.Errorf("no mark says %q: %+v", want, counted)
	}
	other := r.node(node.DeployWait, true, func(n *node.Node) { n.Boot.Media = true })
	part, _ := r.address(other)
	r.get(part, "192.0.2.9", "Range", "bytes=0-2047")
	if marks := r.marksOf(other); !strings.Contains(marks, node.MarkMediaRead) ||
		strings.Contains(marks, node.MarkRamdisk) {
		t.Errorf("with the first sectors read the time line is %q", marks)
	}
	if secret := strings.Split(path, "/")[2]; r.log.count(secret) > 0 || r.log.count(token[1]) > 0 {
		t.Error("the log has the image's address or token")
	}
}

// TestBootImageHasNetworkData: a node's network_data is in its image, and another image has another version. What the
// agent could not set up makes no image.
func TestBootImageHasNetworkData(t *testing.T) {
	r, n := newImageRig(t, nil)
	path, _ := r.address(n)
	without := r.get(path, "192.0.2.9").Header.Get("ETag")
	n, other := r.node(node.DeployWait, true, func(n *node.Node) {
		n.Boot.Media = true
		n.NetworkData = map[string]any{
			"links": []any{map[string]any{"id": "nic", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}},
			"networks": []any{map[string]any{"id": "prov", "type": "ipv4", "link": "nic", "ip_address": "192.0.2.50",
				"netmask": "255.255.255.0", "network_id": "x"}},
		}
	}), r.node(node.DeployWait, true, func(n *node.Node) {
		n.Boot.Media = true
		n.NetworkData = map[string]any{
			"links": []any{map[string]any{"id": "eth", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}},
			"networks": []any{map[string]any{"id": "prov", "type": "ipv4", "link": "nic", "ip_address": "192.0.2.50",
				"netmask": "255.255.255.0", "network_id": "x"}},
		}
	})
	path, _ = r.address(n)
	resp := r.get(path, "192.0.2.9")
	iso, err := iso9660.Open(strings.NewReader(body(t, resp)))
	if err != nil {
		t.Fatal(err)
	}
	if own := string(must(fs.ReadFile(iso, "boot/node"))); !strings.Contains(own, segment.Network[1:]) ||
		!strings.Contains(own, `"ip_address":"192.0.2.50"`) || resp.Header.Get("ETag") == without {
		t.Errorf("the node's part is %q", own)
	}
	_, _, err = r.s.BootImage(t.Context(), r.load(other))
	if err == nil || !strings.Contains(err.Error(), `no link "nic"`) {
		t.Errorf("a network on a link that is not there: %v", err)
	}
}

// TestBootImageIsOfOneBoot: the address is good for its node's boot, from the open window to the agent's end, and for
// nothing else.
func TestBootImageIsOfOneBoot(t *testing.T) {
	now := time.Now
	atWork := func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = now(), now() }
	for name, tt := range map[string]struct {
		change func(n *node.Node)
		after  time.Duration
		want   int
	}{
		"window open":     {func(*node.Node) {}, 0, 200},
		"agent at work":   {atWork, 0, 200},
		"agent for hours": {atWork, 3 * time.Hour, 200},
		"agent ended":     {func(n *node.Node) { atWork(n); n.Boot.Ended = true }, 0, 404},
		"window over":     {func(*node.Node) {}, 2 * time.Hour, 404},
		"window closed":   {func(n *node.Node) { n.Boot.ClosedAt = now() }, 0, 404},
		"next boot":       {func(n *node.Node) { n.Boot.Generation++ }, 0, 404},
		"network boot":    {func(n *node.Node) { n.Boot.Media = false }, 0, 404},
		"no boot":         {func(n *node.Node) { n.Boot = nil }, 0, 404},
	} {
		t.Run(name, func(t *testing.T) {
			r, n := newImageRig(t, nil)
			path, _ := r.address(n)
			if got := r.get(path, "192.0.2.9").StatusCode; got != 200 {
				t.Fatalf("at first %d", got)
			}
			r.update(n, tt.change)
			r.clock.Store(int64(tt.after + recheck))
			for range 2 { // from the store, and from memory
				if got := r.get(path, "192.0.2.9").StatusCode; got != tt.want {
					t.Errorf("%d, want %d", got, tt.want)
				}
			}
		})
	}

	r, n := newImageRig(t, nil)
	other := r.node(node.DeployWait, true, func(n *node.Node) { n.Boot.Media = true })
	path, hash := r.address(n)
	second, otherHash := r.address(other)
	secret := strings.SplitN(strings.Split(path, "/")[2], ".", 2)[1]
	if hash == otherHash || strings.Contains(second, secret) || len(secret) != 32 {
		t.Errorf("addresses %q and %q", path, second)
	}
	name := func(part string) string { return "/boot-image/" + part + "/ingot.iso" }
	for _, bad := range []string{name(other.UUID + "." + secret), name(n.UUID + "."), name(n.UUID + "." + secret[1:]),
		name(n.UUID), name(n.UUID + "." + strings.Repeat("0", 32)), name("x"), "/boot-image/",
		strings.TrimSuffix(path, "ingot.iso"), path + "x"} {
		if got := r.get(bad, "192.0.2.9").StatusCode; got != http.StatusNotFound {
			t.Errorf("%s = %d", bad, got)
		}
	}
	if post := httptest.NewRecorder(); true {
		r.s.Handler().ServeHTTP(post, httptest.NewRequest("POST", path, strings.NewReader("x")))
		if post.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST = %d", post.Code)
		}
	}
	// Another installation's key makes other addresses.
	r.s.cfg.ImageKey = []byte("another")
	r.clock.Store(int64(2 * recheck))
	if got := r.get(path, "192.0.2.9").StatusCode; got != http.StatusNotFound {
		t.Errorf("with another key %d", got)
	}
}

// TestBootImageFails: what prevents an image is said before anything is inserted, and a machine reads the ramdisk
// that its image was made of: when another one has taken its place, too, but not when the files were written over.
func TestBootImageFails(t *testing.T) {
	r, n := newImageRig(t, nil)
	fails := func(want string) {
		t.Helper()
		r.s.images.by = nil
		if _, _, err := r.s.BootImage(t.Context(), r.load(n)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r.update(n, func(n *node.Node) { n.DriverInfo["kernel_append_params"] = strings.Repeat("x", 2048) })
	fails("shorten kernel_append_params")
	r.update(n, func(n *node.Node) { n.DriverInfo["kernel_append_params"] = "a;b" })
	fails("characters")
	r.update(n, func(n *node.Node) { delete(n.DriverInfo, "kernel_append_params") })
	path, _ := r.address(n)
	before := r.get(path, "192.0.2.9")
	want := body(t, before)
	old := filepath.Join(r.dir, "old")
	if err := os.Rename(filepath.Join(r.dir, "ramdisk"), old); err != nil {
		t.Fatal(err)
	}
	r.ramdisk("the kernel, longer", "the initramfs", isoLoaders...)
	after := r.get(path, "192.0.2.9")
	if got := body(t, after); got != want || after.Header.Get("Etag") != before.Header.Get("Etag") {
		t.Errorf("with another ramdisk in its place the image changed: %s, %d bytes", after.Status, len(got))
	}
	if err := os.WriteFile(filepath.Join(old, "vmlinuz"), []byte("anything else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if resp := r.get(path, "192.0.2.9"); resp.StatusCode != http.StatusServiceUnavailable ||
		r.log.count("was changed") != 1 {
		t.Errorf("with a kernel that was written over %d: %s", resp.StatusCode, r.log.b.String())
	}
	r.ramdisk("the kernel", "the initramfs", isoLoaders[1:]...)
	fails("no boot loader shimx64.efi")
	r.ramdisk("the kernel", "the initramfs", isoLoaders...)
	must(r.s.files.currentRamdisk())
	file := filepath.Join(r.dir, "ramdisk", "grubx64.efi")
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 1100), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("is not the one that manifest.json names")
	r.ramdisk("the kernel", "the initramfs", isoLoaders...)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	fails("grubx64.efi")
}

// TestExternalURL: controllers get the address that is configured for them.
func TestExternalURL(t *testing.T) {
	for _, base := range []string{"https://boot.example/a", "https://boot.example/a/"} {
		r, n := newImageRig(t, func(c *Config) { c.ExternalURL = base })
		if image, _, err := r.s.BootImage(t.Context(), n); err != nil ||
			!strings.HasPrefix(image.Address, "https://boot.example/a/boot-image/"+n.UUID+".") {
			t.Errorf("%q, %v", image.Address, err)
		}
		for own, want := range map[any]string{"http://10.0.0.1:8080": "http://10.0.0.1:8080/boot-image/", "": base[:19],
			5: "", "10.0.0.1": "", "ftp://10.0.0.1": "", "http://u:p@10.0.0.1": "",
			"http://10.0.0.1?a": "", "http:///a": ""} {
			n.DriverInfo["external_http_url"] = own
			image, _, err := r.s.BootImage(t.Context(), n)
			if (err != nil) != (want == "") || !strings.HasPrefix(image.Address, want) {
				t.Errorf("%v: %q, %v", own, image.Address, err)
			}
		}
	}
}

// TestBootImagesAreForgotten: images that are not read take no memory.
func TestBootImagesAreForgotten(t *testing.T) {
	r, n := newImageRig(t, nil)
	r.address(n)
	r.clock.Store(int64(imageIdle + time.Minute))
	other := r.node(node.DeployWait, true, func(n *node.Node) { n.Boot.Media = true })
	r.address(other)
	if ids := slices.Collect(maps.Keys(r.s.images.by)); len(ids) != 1 || ids[0] != other.UUID {
		t.Errorf("images of %v are in memory", ids)
	}
}
