// Package rescue provides login to a machine in rescue: an ssh server inside the agent.
//
// It listens only between Open and Close: the step rescue.rescue opens it, and the agent closes it when another plan
// begins, when the boot is about to end, and when the conductor has no more use for this boot. Passwords are given as a
// bcrypt or SHA-crypt hash, keys as lines of an authorized_keys file; the users rescue and root are equivalent. The
// host key is new in each boot and part of the step's result, so that a client can compare it with the key that the
// conductor shows over a trusted connection.
//
// A login is a shell of the ramdisk, as root, with or without a terminal, or one command. There is no forwarding of
// ports, agents or X11, and no subsystems. Wrong passwords are limited per address and in total, as are connections and
// sessions.
package rescue

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// Users that may log in, with the same rights: Ironic's name, and the customary one.
var users = []string{"rescue", "root"}

// Machine is the part of the machine that this package uses; agent/machine/linux implements it.
type Machine interface {
	HasShell() bool
	Shell(command string, env []string, stdin, stdout, stderr *os.File, tty bool) (*os.Process, error)
	SignalGroup(leader int, sig unix.Signal) error
	Terminal(cols, rows uint16) (master, slave *os.File, err error)
	ResizeTerminal(f *os.File, cols, rows uint16) error
}

// Host is the ssh server. Safe for concurrent use.
type Host struct {
	machine Machine
	log     *slog.Logger
	listen  string // address
	limit   *limiter

	mu     sync.Mutex
	key    ed25519.PrivateKey // nil before the first Open
	signer ssh.Signer
	access *Access // nil while closed
	srv    *server
}

// New returns a closed Host that will listen on an address, ":22" if it is empty. A nil m is a machine without a shell.
func New(m Machine, listen string, log *slog.Logger) *Host {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Host{machine: m, log: log, listen: cmp.Or(listen, ":22"), limit: newLimiter(time.Now)}
}

// Info says how to log in.
type Info struct {
	Addresses []string `json:"addresses"` // of the machine, as far as it knows them
	Port      int      `json:"port"`
	Users     []string `json:"users"`
	// HostKey is the key's fingerprint as ssh shows it ("SHA256:..."), HostKeyLine the key itself as in a known_hosts
	// file, without a host.
	HostKey     string `json:"host_key"`
	HostKeyLine string `json:"host_key_line"`
	Password    bool   `json:"password"` // password login is enabled
	Keys        int    `json:"ssh_keys"` // number of accepted keys
}

// Open allows logins from now on. A previous opening is closed first.
func (h *Host) Open(a Access) (Info, error) {
	keys, err := a.check()
	if err != nil {
		return Info{}, step.Fail("correct the rescue password or the ssh keys", err)
	}
	if h.machine == nil || !h.machine.HasShell() {
		return Info{}, step.Failf(
			"build the ramdisk with a profile that has a shell (ingot ramdisk build --profile server), let ingotd serve it, and ask for rescue again",
			"this ramdisk has no shell to log in to")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closeLocked("reopened")
	if err := h.makeKey(nil); err != nil {
		return Info{}, err
	}
	// All addresses: the machine can't know which interface leads to the user.
	ln, err := net.Listen("tcp", h.listen)
	if err != nil {
		return Info{}, step.Retryable("look at what else of the ramdisk listens on that port",
			fmt.Errorf("listen for ssh: %w", err))
	}
	h.srv = h.serve(ln, a.PasswordHash, keys)
	h.access = &a
	info := h.info(ln.Addr())
	h.log.Warn("rescue: ssh is open", "addresses", strings.Join(info.Addresses, " "), "port", info.Port, "host_key",
		info.HostKey, "password", info.Password, "keys", info.Keys)
	return info, nil
}

func (h *Host) info(at net.Addr) Info {
	i := Info{Addresses: addresses(), Users: slices.Clone(users), HostKey: ssh.FingerprintSHA256(h.signer.PublicKey()),
		HostKeyLine: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(h.signer.PublicKey()))),
		Password:    h.access.PasswordHash != "", Keys: len(h.access.Keys)}
	if t, ok := at.(*net.TCPAddr); ok {
		i.Port = t.Port
	}
	return i
}

// addresses returns the machine's addresses that others may reach.
func addresses() []string {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	out := []string{}
	for _, a := range list {
		if p, ok := a.(*net.IPNet); ok && p.IP.IsGlobalUnicast() {
			out = append(out, p.IP.String())
		}
	}
	return out
}

// makeKey creates the host key of this boot once, or takes over that of an earlier worker. The lock is held.
func (h *Host) makeKey(der []byte) error {
	if h.key != nil {
		return nil
	}
	var key ed25519.PrivateKey
	if der != nil {
		k, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return fmt.Errorf("read the ssh host key: %w", err)
		}
		ok := false
		if key, ok = k.(ed25519.PrivateKey); !ok {
			return errors.New("read the ssh host key: it is of another kind")
		}
	} else {
		var err error
		if _, key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return fmt.Errorf("make an ssh host key: %w", err)
		}
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return fmt.Errorf("make an ssh host key: %w", err)
	}
	h.key, h.signer = key, signer
	return nil
}

// Close ends all sessions with their processes and refuses further logins. It returns once nothing listens, and reports
// whether the host was open.
func (h *Host) Close(why string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.srv != nil
	h.closeLocked(why)
	return was
}

func (h *Host) closeLocked(why string) {
	if h.srv == nil {
		return
	}
	h.srv.close()
	h.srv, h.access = nil, nil
	h.log.Warn("rescue: ssh is closed", "why", why)
}

// kept is the state from which the next worker of this boot reopens the host.
type kept struct {
	Key    []byte `json:"key"` // PKCS #8
	Access Access `json:"access"`
}

// Keep returns the state for Restore; nil while closed. It is secret.
func (h *Host) Keep() json.RawMessage {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.access == nil {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(h.key)
	if err != nil {
		return nil
	}
	b, err := json.Marshal(kept{der, *h.access})
	if err != nil {
		return nil
	}
	return b
}

// Restore reopens a host that an earlier worker of this boot had open, with the same host key.
func (h *Host) Restore(b json.RawMessage) error {
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return fmt.Errorf("take over the rescue of the last worker: %w", err)
	}
	h.mu.Lock()
	err := h.makeKey(k.Key)
	h.mu.Unlock()
	if err == nil {
		_, err = h.Open(k.Access)
	}
	if err != nil {
		return fmt.Errorf("take over the rescue of the last worker: %w", err)
	}
	return nil
}

type factKey struct{}

// Offer makes the host available to the steps of a plan.
func Offer(f *step.Facts, h *Host) { f.Set(factKey{}, h) }

// Args declares the arguments of the step.
var Args = []step.Arg{
	{Name: "password_hash", Type: "string", Secret: true,
		Description: "bcrypt or SHA-crypt hash of the login password"},
	{Name: "ssh_keys", Type: "array", Items: "string", Max: step.Limit(maxKeys),
		Description: "login keys, as lines of an authorized_keys file without options"},
}

// Step opens the machine for login with the password or a key. It changes nothing on a disk; run again, it reopens with
// the new access data.
func Step() step.Func {
	return step.With(func(_ context.Context, c *step.Call, a Access) (step.Outcome, error) {
		h, _ := c.Facts.Get(factKey{}).(*Host)
		if h == nil {
			return step.Outcome{},
				step.Failf("ask for rescue", "the machine is not being rescued, so login is refused")
		}
		info, err := h.Open(a)
		if err != nil {
			return step.Outcome{}, err
		}
		return step.Outcome{Result: info}, nil
	})
}
