package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/pubimage"
	"github.com/ingot-metal/ingot/test/kit/rack"
)

// picture is an image whose chunks don't pack, apart from zeros: nothing takes more memory.
type picture struct {
	size  int64
	data  map[int]int // chunks that are not zeros, and which content they have
	noise []byte
}

func newPicture(size int64, data ...int) *picture {
	p := &picture{size: size, data: map[int]int{}, noise: make([]byte, 2*index.ChunkSize)}
	_, _ = rand.NewChaCha8([32]byte{9}).Read(p.noise)
	for k, i := range data {
		p.data[i] = k * 4097
	}
	return p
}

// changed is another version, of which most chunks are new.
func (p *picture) changed() *picture {
	n := &picture{size: p.size, data: map[int]int{}, noise: p.noise}
	for i, from := range p.data {
		n.data[i] = from
		if from/4097%8 != 0 {
			n.data[i] += 77
		}
	}
	return n
}

func (p *picture) chunk(i int) []byte {
	from, ok := p.data[i]
	if !ok {
		return nil
	}
	b := bytes.Clone(p.noise[from%index.ChunkSize:][:index.ChunkSize])
	if i == 0 { // the table of an MBR with one partition
		clear(b[:512])
		putMBR(b, 64*mib)
	}
	return b
}

// mustBeOn compares the chunks with data; the table may have been completed.
func (p *picture) mustBeOn(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, index.ChunkSize)
	for i := range p.data {
		if _, err := f.ReadAt(got, int64(i)*index.ChunkSize); err != nil {
			t.Fatal(err)
		}
		want := p.chunk(i)
		if i == 0 {
			copy(got[:512], want[:512])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("chunk %d on %s is not the image's", i, path)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if data := int64(len(p.data)) * index.ChunkSize; st.Blocks*512 > data+data/50+4*mib {
		t.Errorf("%d MiB landed on the disk of %d MiB that are not zero", st.Blocks>>11, data>>20)
	}
}

// slow lets through so many bytes a second, for all together.
type slow struct {
	http.ResponseWriter
	l *pace
}

type pace struct {
	mu   sync.Mutex
	free time.Time
	rate float64
	sent int64
}

func (l *pace) total() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

func (s slow) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		n := min(len(b), 64<<10)
		s.l.mu.Lock()
		if now := time.Now(); s.l.free.Before(now) {
			s.l.free = now
		}
		s.l.free = s.l.free.Add(time.Duration(float64(n) / s.l.rate * float64(time.Second)))
		d := time.Until(s.l.free)
		s.l.sent += int64(n)
		s.l.mu.Unlock()
		time.Sleep(d)
		k, err := s.ResponseWriter.Write(b[:n])
		total += k
		if err != nil {
			return total, err
		}
		b = b[n:]
	}
	return total, nil
}

// swarm is some agents, each in a control group, and what they need.
type swarm struct {
	t     *testing.T
	www   string
	url   string
	rack  *rack.Rack
	line  *pace
	disks []string
	logs  []string

	mu    sync.Mutex
	peaks []int            // KiB
	ended map[string]error // by node, of the newest plan
	done  chan struct{}    // one for each that has ended
	began chan struct{}    // closed when the first agent has written a part
	wrote bool
}

// newSwarm starts agents with empty disks. The image's server sends rate bytes a second.
func newSwarm(t *testing.T, size int64, members int, rate float64) *swarm {
	t.Helper()
	kit.NeedPrograms(t, "go")
	dir := t.TempDir()
	program := filepath.Join(dir, "member")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./member")
	s := &swarm{t: t, www: filepath.Join(dir, "www"), line: &pace{rate: rate}, peaks: make([]int, members),
		ended: map[string]error{}, done: make(chan struct{}, members), began: make(chan struct{})}
	files := http.FileServer(http.Dir(s.www))
	web := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { files.ServeHTTP(slow{w, s.line}, r) }))
	t.Cleanup(web.Close)
	s.url = web.URL
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.rack, err = rack.Start(t.Context(), l,
		rack.Options{Dir: filepath.Join(dir, "rack"), Nodes: members, Swarm: &agents.Swarm{}, Event: s.event,
			Report: s.progress})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.rack.Stop(); err != nil {
			t.Error(err)
		}
	})
	for i, token := range s.rack.Tokens {
		disk := kit.Loop(t, kit.TempDisk(t, size+64*mib), "--direct-io=on")
		s.disks = append(s.disks, disk)
		log, err := os.Create(filepath.Join(dir, fmt.Sprintf("log-%d", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		s.logs = append(s.logs, log.Name())
		cmd := kit.MemoryGroup(t, limit).Command(context.WithoutCancel(t.Context()), program, l.Addr().String(),
			s.rack.CA, token, disk)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = log.Close()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		go s.watch(i, cmd.Process.Pid, program)
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := <-ended; err != nil {
				t.Errorf("agent %d: %v\n%s", i+1, err, s.log(i))
			}
		})
	}
	select {
	case <-s.rack.Ready():
	case <-time.After(time.Minute):
		t.Fatal("not all agents came")
	}
	return s
}

// watch notes the most memory that an agent has.
func (s *swarm) watch(i, pid int, program string) {
	for peak := 0; ; time.Sleep(10 * time.Millisecond) {
		now := kit.HighWater(pid, program)
		if now == 0 && peak > 0 {
			return
		}
		peak = max(peak, now)
		s.mu.Lock()
		s.peaks[i] = peak
		s.mu.Unlock()
	}
}

func (s *swarm) log(i int) string {
	b, err := os.ReadFile(s.logs[i])
	if err != nil {
		s.t.Error(err)
	}
	return string(b)
}

func (s *swarm) progress(_ string, p node.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Phase == "write" && p.Bytes > 0 && p.Bytes > p.Total/4 && !s.wrote {
		s.wrote = true
		close(s.began)
	}
}

func (s *swarm) event(e node.AgentEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.StepFinished != nil && e.StepFinished.Error != "":
		s.ended[e.NodeUUID] = fmt.Errorf("%s", e.StepFinished.Error)
	case e.PlanFinished != nil:
		if _, failed := s.ended[e.NodeUUID]; !failed {
			s.ended[e.NodeUUID] = nil
		}
		s.done <- struct{}{}
	}
}

// publish puts an image where the agents find it.
func (s *swarm) publish(name string, p *picture) {
	s.t.Helper()
	if _, err := pubimage.Write(s.www, name, p.size, p.chunk); err != nil {
		s.t.Fatal(err)
	}
}

// write has an agent write an image.
func (s *swarm) write(i int, name, difference string) {
	s.t.Helper()
	args, err := json.Marshal(
		map[string]any{"image_source": s.url + "/" + name + index.Suffix, "allow_unverified": true,
			"image_difference": difference, "root_device": map[string]string{"name": "s== " + s.disks[i]}})
	if err != nil {
		s.t.Fatal(err)
	}
	err = s.rack.Send(s.t.Context(), s.rack.Nodes[i],
		node.PlanStep{Interface: "deploy", Name: "write_image", Args: args},
		node.PlanStep{Interface: "deploy", Name: "prepare_instance_boot"})
	if err != nil {
		s.t.Fatal(err)
	}
}

// wait waits until all agents have written.
func (s *swarm) wait() {
	s.t.Helper()
	for range s.disks {
		select {
		case <-s.done:
		case <-time.After(3 * time.Minute):
			for i := range s.logs {
				s.t.Logf("agent %d:\n%s", i+1, s.log(i))
			}
			s.t.Fatal("some agents don't end")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range s.rack.Nodes {
		if err := s.ended[id]; err != nil {
			s.t.Fatalf("agent %d: %v\n%s", i+1, err, s.log(i))
		}
	}
	clear(s.ended)
}

// mustBeSmall compares what agents have taken with the limit.
func (s *swarm) mustBeSmall() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, peak := range s.peaks {
		s.t.Logf("agent %d: peak of %d MiB", i+1, peak>>10)
		if peak == 0 || peak > limit>>10 {
			s.t.Errorf("agent %d had a peak of %d KiB", i+1, peak)
		}
	}
}

// exchanged is how many bytes came from neighbours so far, and how many chunks were read back and packed anew for them.
func (s *swarm) exchanged() (bytes, repacked int) {
	for i := range s.logs {
		for _, m := range complete.FindAllStringSubmatch(s.log(i), -1) {
			n, _ := strconv.Atoi(m[1])
			k, _ := strconv.Atoi(m[2])
			bytes, repacked = bytes+n, repacked+k
		}
	}
	return bytes, repacked
}

var complete = regexp.MustCompile(`msg="image complete".* from_neighbours=(\d+) .*repacked=(\d+)`)

// TestMemoryInASwarm: a whole agent that writes and gives to others at the same time stays within 64 MiB, with chunks
// that don't pack. One comes late, so that others read back and pack what they gave out of memory long ago. Then all
// bring their disks up to another version.
func TestMemoryInASwarm(t *testing.T) {
	const chunks = 40
	for _, c := range []struct {
		name string
		size int64
		step int // from one chunk with data to the next
	}{
		{"1GiB", 1 << 30, 1},
		{"100GiB", 100 << 30, 640}, // each of them in another list of blocks, or almost
	} {
		t.Run(c.name, func(t *testing.T) {
			var data []int
			for i := range chunks {
				data = append(data, i*c.step)
			}
			p := newPicture(c.size, data...)
			s := newSwarm(t, c.size, 4, 30*mib)
			s.publish("first", p)
			for i := range 3 {
				s.write(i, "first", "auto")
			}
			select {
			case <-s.began:
			case <-time.After(3 * time.Minute):
				t.Fatalf("no agent gets to write a quarter of the image:\n%s", s.log(0))
			}
			s.write(3, "first", "auto")
			s.wait()
			s.mustBeSmall()
			for _, d := range s.disks {
				p.mustBeOn(t, d)
			}
			bytes, repacked := s.exchanged()
			t.Logf("%d MiB from neighbours, %d from the server; %d chunks packed anew", bytes/mib, s.line.total()/mib,
				repacked)
			if bytes < chunks*index.ChunkSize || repacked == 0 {
				t.Error("that was no swarm")
			}

			n := p.changed()
			s.publish("second", n)
			for i := range s.disks {
				s.write(i, "second", "always")
			}
			s.wait()
			s.mustBeSmall()
			for _, d := range s.disks {
				n.mustBeOn(t, d)
			}
			again, _ := s.exchanged()
			t.Logf("%d MiB from neighbours, %d from the server", (again-bytes)/mib, s.line.total()/mib)
			if again-bytes < chunks*index.ChunkSize {
				t.Error("the second time there was no swarm")
			}
		})
	}
}
