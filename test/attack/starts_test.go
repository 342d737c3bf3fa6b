package attack

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestKilledInFlight: killed at any moment, ingotd recovers by itself, with everything that it had answered, and with
// nothing stuck. INGOT_FULL kills it thirty times.
func TestKilledInFlight(t *testing.T) {
	c := newConductor(t)
	rounds := 3
	if os.Getenv("INGOT_FULL") != "" {
		rounds = 30
	}
	const writers = 4
	client := http.Client{Timeout: time.Minute}
	ask := func(method, path, body string) int { // 0: no answer
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.addr+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
		resp, err := client.Do(req)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	c.start()
	for i := range writers {
		c.want(201, "POST", "/v1/nodes", fmt.Sprintf(`{"driver":"fake-hardware","name":"w%d"}`, i))
	}
	var created sync.Map
	counts := make([]int, writers) // the last count that each writer was answered for
	for round := range rounds {
		var answered atomic.Int32
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for n := 0; ; n++ {
					next := counts[i] + 1
					if ask("PATCH", fmt.Sprintf("/v1/nodes/w%d", i),
						fmt.Sprintf(`[{"op":"add","path":"/extra/count","value":%d}]`, next)) == 200 {
						counts[i] = next
					}
					name := fmt.Sprintf("r%dw%dn%d", round, i, n)
					status := ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`"}`)
					if status == 201 {
						created.Store(name, true)
						status = ask("PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"manage"}`)
					}
					if status == 0 {
						return
					}
					answered.Add(1)
				}
			})
		}
		for enough := int32(20 + rand.IntN(20)); answered.Load() < enough; {
			time.Sleep(time.Millisecond)
		}
		c.kill()
		wg.Wait()
		c.start()
		all := c.want(200, "GET", "/v1/nodes/detail", "")
		for i := range writers {
			out := c.want(200, "GET", fmt.Sprintf("/v1/nodes/w%d", i), "")
			// The last one may have been stored without an answer.
			was, next := fmt.Sprintf(`"count":%d}`, counts[i]), fmt.Sprintf(`"count":%d}`, counts[i]+1)
			if strings.Contains(out, next) {
				counts[i]++
			} else if counts[i] > 0 && !strings.Contains(out, was) {
				t.Errorf("round %d: patch %d of w%d was answered and is lost: %s", round, counts[i], i, out)
			}
		}
		created.Range(func(name, _ any) bool {
			if !strings.Contains(all, fmt.Sprintf(`"name":%q`, name)) {
				t.Errorf("round %d: node %s was answered and is lost", round, name)
			}
			return true
		})
		ingotd.Wait(t, "nothing is under way", func() bool {
			return !strings.Contains(c.want(200, "GET", "/v1/nodes?provision_state=verifying", ""), `"uuid"`)
		})
		if out := c.want(200, "GET", "/v1/nodes/detail", ""); strings.Contains(out, `"reservation":"`) {
			t.Errorf("round %d: a node is locked", round)
		}
	}
	c.stop()
	if out, err := c.command("doctor", "--set", "api.listen="+c.addr, "--set",
		"agents.advertise=127.0.0.1:1"); err != nil || !strings.Contains(out, "OK       database") {
		t.Errorf("doctor after the kills: %v\n%s", err, out)
	}
}

// TestStartsThatAreRefused: an ingotd that can't have what it needs says what that is, and ends.
func TestStartsThatAreRefused(t *testing.T) {
	kit.NeedRoot(t)
	c := newConductor(t)
	c.start()
	c.stop()
	key, err := os.ReadFile(c.file("key"))
	if err != nil {
		t.Fatal(err)
	}
	var agents string
	for _, arg := range c.args {
		if addr, ok := strings.CutPrefix(arg, "agents.listen="); ok {
			agents = addr
		}
	}
	for _, row := range []struct {
		name  string
		spoil func() (mend func())
		words []string
	}{
		{"no key", func() func() {
			if err := os.Remove(c.file("key")); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.WriteFile(c.file("key"), key, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, []string{c.file("key")}},
		{"a key that is none", func() func() {
			if err := os.WriteFile(c.file("key"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.WriteFile(c.file("key"), key, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, []string{c.file("key")}},
		{"port in use", func() func() {
			l, err := net.Listen("tcp", agents) // not the API's, which start asks whether it serves
			if err != nil {
				t.Fatal(err)
			}
			return func() { l.Close() }
		}, []string{"listen for agents", agents, "address already in use"}},
		{"read-only directory", func() func() {
			for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
				if err := unix.Mount(c.dir, c.dir, "", flags, ""); err != nil {
					t.Fatal(err)
				}
			}
			return func() {
				if err := unix.Unmount(c.dir, 0); err != nil {
					t.Error(err)
				}
			}
		}, []string{"read-only file system", c.dir}},
	} {
		func() {
			defer row.spoil()() // which mends it again
			c.refuses(row.words...)
		}()
	}
	c.start()
	c.stop()
}

// TestAskedToEnd: on a request to end, ingotd completes running requests, and does not wait forever for slow clients.
func TestAskedToEnd(t *testing.T) {
	t.Parallel() // it waits
	c := newConductor(t)
	c.start()
	body := `{"driver":"fake-hardware","name":"late"}`
	begin := func() net.Conn {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := fmt.Fprintf(conn,
			"POST /v1/nodes HTTP/1.1\r\nHost: x\r\nX-OpenStack-Ironic-API-Version: 1.82\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body)); err != nil {
			t.Fatal(err)
		}
		// A request whose header has not been read when the server is asked to end has not begun.
		const begun = "HTTP/1.1 100 Continue\r\n\r\n"
		said := make([]byte, len(begun))
		if _, err := io.ReadFull(conn, said); err != nil || string(said) != begun {
			t.Fatalf("a request that begins = %q, %v", said, err)
		}
		if _, err := io.WriteString(conn, body[:5]); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn, slow := begin(), begin()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ingotd.Wait(t, "the listener is closed", func() bool {
		another, err := net.Dial("tcp", c.addr)
		if err == nil {
			another.Close()
		}
		return err != nil
	})
	if _, err := io.WriteString(conn, body[5:]); err != nil {
		t.Error(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 201 ") {
		t.Errorf("a request that had begun = %.200s, %v", answer, err)
	}
	<-c.gone
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it ended after %v", took)
	}
	slow.Close()
	c.start()
	c.want(200, "GET", "/v1/nodes/late", "")
	c.stop()
}
