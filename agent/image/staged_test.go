package image

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

// counted serves a file and counts the requests for it.
func counted(t *testing.T, files map[string][]byte) (*httptest.Server, *atomic.Int64) {
	n := &atomic.Int64{}
	return serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		file, ok := files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(file)))
		_, _ = w.Write(file)
	}), n
}

// ahead makes the bench's plan one that works ahead.
func (b *bench) ahead() *bench {
	Ahead(b.facts)
	return b
}

// next begins a deployment in the same boot.
func (b *bench) next() {
	facts := &step.Facts{}
	HandOver(b.facts, facts)
	b.facts = facts
}

// TestStaged: an image that was written ahead is found by a deployment of the same one, and by no other.
func TestStaged(t *testing.T) {
	img, other := mbrImage(6*mib+1536), mbrImage(5*mib)
	other[3*mib] ^= 1
	files := map[string][]byte{"disk.raw": img, "other.raw": other, "SHA256SUMS": []byte(sha(img) + "  disk.raw\n")}
	srv, requests := counted(t, files)
	plain := map[string]any{"image_source": srv.URL + "/disk.raw", "image_os_hash_algo": "sha256",
		"image_os_hash_value": sha(img)}
	with := func(more map[string]any) map[string]any {
		args := maps.Clone(plain)
		maps.Copy(args, more)
		return args
	}
	for _, c := range []struct {
		name          string
		ahead, deploy map[string]any
		between       func(*testing.T, *bench)
		found         bool
		asks          int64 // of the second step, when it is found
	}{
		{"the same", plain, plain, nil, true, 0},
		{"the same from another place", plain, with(map[string]any{"image_source": "http://127.0.0.1:1/else"}), nil,
			true, 0},
		{"the same digest by another name", plain,
			with(map[string]any{"image_os_hash_algo": "", "image_os_hash_value": "", "image_checksum": sha(img)}), nil,
			true, 0},
		{"by a checksum file", with(map[string]any{"image_os_hash_value": srv.URL + "/SHA256SUMS"}),
			with(map[string]any{"image_os_hash_value": srv.URL + "/SHA256SUMS"}), nil, true, 1},
		{"another image", plain, map[string]any{"image_source": srv.URL + "/other.raw", "image_checksum": sha(other)},
			nil, false, 0},
		{"no digest", with(
			map[string]any{"image_os_hash_algo": "", "image_os_hash_value": "", "allow_unverified": true}),
			with(map[string]any{"image_os_hash_algo": "", "image_os_hash_value": "", "allow_unverified": true}), nil,
			false, 0},
		{"a layout that has no say", plain, with(map[string]any{"swap_mb": 1, "image_type": "whole-disk"}), nil, true,
			0},
		{"to be read back", plain, with(map[string]any{"verify": true}), nil, false, 0},
		{"was read back", with(map[string]any{"verify": true}), plain, nil, true, 0},
		{"of a server that wanted a secret", with(map[string]any{"image_source": srv.URL + "/disk.raw?token=x"}), plain,
			nil, false, 0},
		{"with that secret", with(map[string]any{"image_source": srv.URL + "/disk.raw?token=x"}),
			with(map[string]any{"image_source": srv.URL + "/disk.raw?token=x"}), nil, true, 0},
		{"somebody wrote to the disk", plain, plain, func(t *testing.T, b *bench) {
			dev, err := b.m.OpenExclusive(t.Context(), "/dev/vda")
			if err != nil {
				t.Fatal(err)
			}
			buf := disk.Aligned(4096)
			buf[0] = 1
			if _, err := dev.WriteAt(buf, 8192); err != nil {
				t.Fatal(err)
			}
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
		}, false, 0},
		{"the agent was lost", plain, plain, func(_ *testing.T, b *bench) { b.facts = &step.Facts{} }, false, 0},
		{"it was deployed before", plain, plain, func(t *testing.T, b *bench) {
			b.commit(t)
		}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, fake.DiskSpec{Size: 16 * mib}).ahead()
			r, err := b.write(t.Context(), maps.Clone(c.ahead))
			if err != nil {
				t.Fatal(err)
			}
			if r.Staged || r.BytesFetched == 0 {
				t.Errorf("the first time: %+v", r)
			}
			if head := b.head(t); strings.Trim(string(head), "\x00") != "" {
				t.Error("the disk has a beginning before it is deployed")
			}
			if c.between != nil {
				c.between(t, b)
			}
			b.next()
			before := requests.Load()
			r, err = b.write(t.Context(), maps.Clone(c.deploy))
			if err != nil {
				t.Fatal(err)
			}
			asks := requests.Load() - before
			if r.Staged != c.found || (r.BytesFetched == 0) != c.found || !c.found && asks == 0 || c.found &&
				asks != c.asks {
				t.Errorf("staged %v, fetched %d bytes with %d requests; want it found: %v\n%s", r.Staged,
					r.BytesFetched, asks, c.found, b.log.String())
			}
			if r.Digest == "" || r.VirtualSize == 0 || r.Disk.Serial != "bench-1" || r.Disk.Why == "" {
				t.Errorf("result = %+v", r)
			}
			b.commit(t)
			want := img
			if strings.HasPrefix(c.name, "another image") {
				want = other
			}
			b.mustHold(t, want)
		})
	}
}

// TestStagedOnce: a staged image serves one deployment.
func TestStagedOnce(t *testing.T) {
	img := mbrImage(4 * mib)
	srv, _ := counted(t, map[string][]byte{"disk.raw": img})
	args := map[string]any{"image_source": srv.URL + "/disk.raw", "image_checksum": sha(img)}
	b := newBench(t, fake.DiskSpec{Size: 16 * mib}).ahead()
	first := b.facts
	for i, want := range []bool{false, true, true} { // a repeated request ahead finds it too
		if i == 2 {
			b.next()
		}
		r, err := b.write(t.Context(), maps.Clone(args))
		if err != nil || r.Staged != want {
			t.Fatalf("time %d: %+v, %v", i, r, err)
		}
	}
	if takeStaged(first) != nil {
		t.Error("it is still there for another plan")
	}
	b.commit(t)
	b.mustHold(t, img)
	if r, err := b.write(t.Context(), maps.Clone(args)); err != nil || r.Staged {
		t.Errorf("in the same deployment: %+v, %v", r, err)
	}
	b.next()
	if r, err := b.write(t.Context(), maps.Clone(args)); err != nil || r.Staged {
		t.Errorf("after the deployment: %+v, %v", r, err)
	}
}

// TestStagedOnAnotherDisk: hints that choose another disk find nothing there.
func TestStagedOnAnotherDisk(t *testing.T) {
	img := mbrImage(4 * mib)
	srv, _ := counted(t, map[string][]byte{"disk.raw": img})
	b := newBench(t, fake.DiskSpec{Size: 16 * mib}).ahead()
	second := b.m.Add(fake.DiskSpec{Name: "vdb", Serial: "bench-2", Size: 16 * mib, Fill: 0x5a})
	args := map[string]any{"image_source": srv.URL + "/disk.raw", "image_checksum": sha(img)}
	if _, err := b.write(t.Context(), maps.Clone(args)); err != nil {
		t.Fatal(err)
	}
	b.next()
	args["root_device"] = map[string]any{"serial": "bench-2"}
	r, err := b.write(t.Context(), args)
	if err != nil || r.Staged || r.Disk.Serial != "bench-2" {
		t.Fatalf("%+v, %v", r, err)
	}
	b.disk = second
	b.commit(t)
	b.mustHold(t, img)
}

// TestStagedPartition: for the image of a file system the disk must have the requested layout.
func TestStagedPartition(t *testing.T) {
	_, img := fsImage(t, 24*mib)
	srv, _ := counted(t, map[string][]byte{"root.img": img})
	args := map[string]any{"image_source": srv.URL + "/root.img", "image_checksum": sha(img), "root_gb": 1,
		"swap_mb": 64}
	for _, c := range []struct {
		key   string
		value any
		found bool
	}{{"image_type", "partition", true}, {"swap_mb", 32, false}} {
		b := newUEFIBench(t, fake.DiskSpec{Size: 3 << 30}).ahead()
		if _, err := b.write(t.Context(), maps.Clone(args)); err != nil {
			t.Fatal(err)
		}
		b.next()
		now := maps.Clone(args)
		now[c.key] = c.value
		r, err := b.write(t.Context(), now)
		if err != nil || r.Staged != c.found {
			t.Errorf("with %s %v: staged %v, %v", c.key, c.value, r != nil && r.Staged, err)
		}
	}
}
