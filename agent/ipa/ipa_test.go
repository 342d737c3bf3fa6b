package ipa_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/ipa"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/test/kit/ironicsim"
)

const mac = "52:54:00:aa:00:14"

// imageOf is a whole-disk image with one partition.
func imageOf(size int) []byte {
	img := bytes.Repeat([]byte("system "), size/7+1)[:size]
	clear(img[440:512])
	img[446+4] = 0x83
	binary.LittleEndian.PutUint32(img[446+8:], 2048)
	binary.LittleEndian.PutUint32(img[446+12:], uint32(size/512-2048))
	img[510], img[511] = 0x55, 0xaa
	return img
}

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// link is the network of a machine in a test.
type link struct {
	mu   sync.Mutex
	left bool
}

func (*link) Wait(context.Context) error { return nil }
func (*link) Rotate()                    {}
func (*link) Summary() string            { return "eth0 127.0.0.1/8" }
func (l *link) Leave(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
	return nil
}

func (l *link) gone() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.left }

// bench is an agent of a fake machine and the Ironic that it works for.
type bench struct {
	t    *testing.T
	sim  *ironicsim.Ironic
	m    *fake.Machine
	disk *fake.Disk
	net  *link
	opts ipa.Options
	stop func() // ends the agent and waits for it
	err  error

	mu    sync.Mutex
	lines []string // of the console
}

// patience makes a second of the protocol 20 ms.
const patience = 20 * time.Millisecond

func newBench(t *testing.T, r ironicsim.Release) *bench {
	b := &bench{t: t, sim: ironicsim.New(t, r, mac, 40), m: fake.NewMachine(t.TempDir()), net: &link{}}
	b.disk = b.m.Disks.Add(fake.DiskSpec{Name: "vda", Serial: "s1", Size: 5 << 30, Fill: 0xa5})
	cfg, ok, err := ipa.Parse("console=ttyS0 ipa-api-url=" + b.sim.URL +
		" ipa-listen-host=127.0.0.1 ipa-lookup-timeout=600")
	if err != nil || !ok {
		t.Fatalf("boot parameters: %v, %v", ok, err)
	}
	cfg.Port, cfg.PublicPort = 0, 0
	b.opts = ipa.Options{Config: cfg, Version: "1.2.3", BootID: "boot-1", Steps: agent.Steps(b.m, nil),
		MACs: func() []string { return []string{mac} }, System: b.m, Network: b.net, Patience: patience,
		Logs:  func() ([]byte, error) { return []byte("archive"), nil },
		State: filepath.Join(t.TempDir(), "state"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Status: func(format string, args ...any) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lines = append(b.lines, fmt.Sprintf(format, args...))
		}}
	return b
}

// run starts the agent.
func (b *bench) run() {
	b.t.Helper()
	a, err := ipa.New(b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.err = a.Run(ctx)
	}()
	b.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	b.t.Cleanup(b.stop)
}

// serve serves an image.
func serve(t *testing.T, img []byte) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "disk", time.Unix(1, 0), bytes.NewReader(img))
	}))
	t.Cleanup(srv.Close)
	return srv
}

// writeStep is write_image as the conductor sends it.
func writeStep(url string, img []byte, more ...any) ironicsim.Step {
	info := map[string]any{"id": "disk.raw", "urls": []string{url}, "disk_format": "raw", "container_format": "bare",
		"stream_raw_images": true, "os_hash_algo": "sha256", "os_hash_value": sha(img), "node_uuid": "x"}
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] == nil {
			delete(info, more[i].(string))
		} else {
			info[more[i].(string)] = more[i+1]
		}
	}
	return ironicsim.Step{Interface: "deploy", Step: "write_image", Priority: 80,
		Args: map[string]any{"image_info": info, "configdrive": nil}}
}

func (b *bench) holds(img []byte) {
	b.t.Helper()
	// The head's table may have been extended by a config drive; the rest is the image.
	got := make([]byte, len(img))
	if _, err := b.disk.ReadAt(got, 0); err != nil {
		b.t.Fatal(err)
	}
	if !bytes.Equal(got[1<<20:], img[1<<20:]) || got[510] != 0x55 {
		b.t.Error("the disk does not hold the image")
	}
}

// TestDeploy is a deployment as the agent sees it, from the lookup to the end of the boot, under the oldest and the
// newest Ironic.
func TestDeploy(t *testing.T) {
	for name, r := range map[string]ironicsim.Release{"21.4": ironicsim.Debian12, "newest": ironicsim.Newest} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, r)
			img := imageOf(3 << 20)
			b.sim.Begin("deploy", false, writeStep(serve(t, img).URL+"/disk.raw", img))
			b.run()
			b.sim.WaitState("active")
			b.holds(img)
			kitEnded(t, b, "off")
			want := []string{"POST deploy.get_deploy_steps 200", "GET 200", "POST deploy.execute_deploy_step 200",
				"GET 200", "POST standby.get_partition_uuids 200", "POST standby.power_off 200"}
			// Heartbeats that come while the image is written lead to further looks at the list.
			if got := slices.Compact(b.sim.Log()); !slices.Equal(got, want) {
				t.Errorf("calls %q, want %q", got, want)
			}
			var res struct {
				Result struct {
					Result string `json:"result"`
				} `json:"deploy_result"`
				Step ironicsim.Step `json:"deploy_step"`
			}
			if err := json.Unmarshal(b.sim.Results()[0].Result, &res); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(res.Result.Result, "prepare_image: image (disk.raw) written to device /dev/vda") ||
				res.Step.Priority != 80 {
				t.Errorf("result %s", b.sim.Results()[0].Result)
			}
		})
	}
}

// kitEnded waits for the end of the machine's boot.
func kitEnded(t *testing.T, b *bench, how string) {
	t.Helper()
	b.sim.Wait("the end of the boot", func() bool { return true })
	for range 500 {
		if b.m.Ended() == how {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Errorf("the boot ended by %q, want %q", b.m.Ended(), how)
}

// TestImages holds which images are taken and which are refused, with the words of the refusal.
func TestImages(t *testing.T) {
	img := imageOf(3 << 20)
	sum := md5.Sum(img)
	weak := hex.EncodeToString(sum[:])
	for name, c := range map[string]struct {
		more []any
		node func(node map[string]any)
		no   bool // MD5 is switched off
		want string
	}{
		"a checksum alone": {more: []any{"os_hash_algo", nil, "os_hash_value", nil, "checksum", sha(img)}},
		"md5":              {more: []any{"os_hash_algo", nil, "os_hash_value", nil, "checksum", weak}},
		"md5 where it is off": {more: []any{"os_hash_algo", nil, "os_hash_value", nil, "checksum", weak}, no: true,
			want: "md5"},
		"no digest":            {more: []any{"os_hash_algo", nil, "os_hash_value", nil}, want: "no digest"},
		"another digest":       {more: []any{"os_hash_value", strings.Repeat("0", 64)}, want: "digest"},
		"a format not allowed": {more: []any{"disk_format", "vmdk"}, want: "permits only"},
		"the content decides":  {more: []any{"disk_format", "qcow2"}},
		"hints of the node": {node: func(n map[string]any) {
			n["properties"] = map[string]any{"root_device": map[string]any{"serial": "s1"}}
		}},
		"hints of the instance": {node: func(n map[string]any) {
			n["properties"] = map[string]any{"root_device": map[string]any{"serial": "s1"}}
			n["instance_info"] = map[string]any{"root_device": map[string]any{"serial": "other"}}
		}, want: "serial"},
		"a partition image by BIOS": {more: []any{"image_type", "partition", "root_gb", 1}, want: "holds"},
		"an unknown authentication": {more: []any{"image_server_auth_strategy", "kerberos"}, want: "http_basic"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ironicsim.Newest
			if c.no {
				config := map[string]any{}
				for k, v := range r.Config {
					config[k] = v
				}
				config["agent_md5_checksum_enable"] = false
				r.Config = config
			}
			b := newBench(t, r)
			if c.node != nil {
				b.sim.Edit(c.node)
			}
			b.sim.Begin("deploy", false, writeStep(serve(t, img).URL+"/disk.raw", img, c.more...))
			b.run()
			if c.want == "" {
				b.sim.WaitState("active")
				b.holds(img)
				return
			}
			b.sim.WaitState("deploy failed")
			if err := b.sim.Error(); !strings.Contains(strings.ToLower(err), c.want) ||
				!strings.Contains(err, "remedy: ") {
				t.Errorf("refused with %s, want %q and a remedy", err, c.want)
			}
		})
	}
}

// TestClean runs steps of a cleaning one after another, and holds that they have their arguments from the node.
func TestClean(t *testing.T) {
	b := newBench(t, ironicsim.Debian12)
	kept := b.m.Disks.Add(fake.DiskSpec{Name: "vdb", Serial: "keep", Size: 1 << 30, Fill: 0x77})
	b.sim.Edit(func(n map[string]any) {
		n["properties"] = map[string]any{"skip_block_devices": []any{map[string]any{"serial": "keep"}}}
		n["driver_internal_info"] = map[string]any{"disk_erasure_concurrency": 2, "agent_erase_devices_iterations": 1}
	})
	b.sim.Begin("clean", false, ironicsim.Step{Interface: "deploy", Step: "erase_devices_metadata", Priority: 99},
		ironicsim.Step{Interface: "deploy", Step: "erase_pstore", Priority: 5})
	b.run()
	b.sim.WaitState("available")
	head := make([]byte, 4096)
	for d, want := range map[*fake.Disk]byte{b.disk: 0, kept: 0x77} {
		if _, err := d.ReadAt(head, 0); err != nil || head[100] != want {
			t.Errorf("a disk begins with %x (%v), want %x", head[100], err, want)
		}
	}
	var one struct {
		Result any            `json:"clean_result"`
		Step   ironicsim.Step `json:"clean_step"`
	}
	if err := json.Unmarshal(b.sim.Results()[1].Result, &one); err != nil || one.Step.Step != "erase_pstore" {
		t.Errorf("the last result %s, %v", b.sim.Results()[1].Result, err)
	}
}

// TestStepThatFails holds that a failure reaches the conductor in words, and that the agent takes commands afterwards.
func TestStepThatFails(t *testing.T) {
	b := newBench(t, ironicsim.Newest)
	b.sim.Begin("clean", false, ironicsim.Step{Interface: "raid", Step: "create_configuration"})
	b.run()
	b.sim.WaitState("clean failed")
	if err := b.sim.Error(); !strings.Contains(err, `"type":"CleaningError"`) ||
		!strings.Contains(err, "target_raid_config") {
		t.Errorf("error %s", err)
	}
	r, ok := b.sim.Call("log.collect_system_logs", true, nil)
	if !ok || !strings.Contains(string(r.Result), base64.StdEncoding.EncodeToString([]byte("archive"))) {
		t.Errorf("logs after a failure: %+v", r)
	}
}
