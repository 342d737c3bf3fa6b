package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/transport"
	"github.com/bougou/go-ipmi/pkg/types"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/tools/enrol"
)

// controller is how to reach a controller.
type controller struct {
	host           string
	port           int
	user, password string
	suites         []types.CipherSuiteID
}

func (p *program) nodeConsole() *cobra.Command {
	var user, password, passwordFile, address string
	return p.onNode(&cobra.Command{
		Use:   "console NAME",
		Short: "Attach to a machine's serial console",
		Long: `Attach to a machine's serial console, over its controller (IPMI serial over LAN). Leave it with ~X at the beginning of a line.

The controller's address and user name are taken from the node. Its password is not: the API never shows it. Give it with
--bmc-password, --bmc-password-file or $INGOT_BMC_PASSWORD, or be asked. This host must reach the controller; those of a
virtual lab are inside its namespace, where "ingot lab console" is the way to a console.`,
	}, []option{
		opt("bmc", &address, "address of the controller (default: the node's)"),
		opt("bmc-user", &user, "user name at the controller (default: the node's)"),
		opt("bmc-password", &password, "password at the controller"),
		opt("bmc-password-file", &passwordFile, "file with the password"),
	}, func(ctx context.Context, c *client.Client, name string) error {
		n, err := c.Node(ctx, name)
		if err != nil {
			return err
		}
		b, err := consoleOf(n.DriverInfo, address, user)
		if err != nil {
			return fmt.Errorf("%s: %w", label(n), err)
		}
		if b.password, err = p.secret(password, passwordFile,
			fmt.Sprintf("Password of %s at %s: ", dash(b.user), b.host)); err != nil {
			return err
		}
		return p.attach(ctx, label(n), b)
	})
}

// consoleOf reads from a node's driver_info how to reach its controller.
func consoleOf(info map[string]any, address, user string) (controller, error) {
	text := func(key string) string {
		if f, ok := exact.Float(info[key]); ok {
			return strconv.Itoa(int(f))
		}
		s, _ := info[key].(string)
		return s
	}
	b := controller{host: text("ipmi_address"), port: 623, user: text("ipmi_username"),
		suites: []types.CipherSuiteID{types.CipherSuiteID17, types.CipherSuiteID3}}
	port := text("ipmi_port")
	if address != "" {
		b.host, port = enrol.SplitBMC(address)
	}
	b.user = cmp.Or(user, b.user)
	if b.host == "" {
		return b, errors.New(
			"it has no controller that speaks IPMI (ipmi_address is not in its driver_info): say --bmc ADDRESS")
	}
	if port != "" {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return b, fmt.Errorf("port %q of its controller is not a number", port)
		}
		b.port = n
	}
	if s := text("ipmi_cipher_suite"); s != "" {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			return b, fmt.Errorf("ipmi_cipher_suite %q is not a number", s)
		}
		b.suites = []types.CipherSuiteID{types.CipherSuiteID(n)}
	}
	return b, nil
}

// attach connects the terminal with the console until the user leaves or the controller ends it.
func (p *program) attach(ctx context.Context, name string, b controller) error {
	where := net.JoinHostPort(b.host, strconv.Itoa(b.port))
	var (
		c   *ipmi.Client
		err error
	)
	for _, suite := range b.suites {
		if c, err = ipmi.NewClient(b.host, b.port, b.user, b.password); err != nil {
			return fmt.Errorf("make IPMI client for %s: %w", where, err)
		}
		c.WithTimeout(2 * time.Second).WithRetry(2).WithCipherSuiteID(suite)
		if err = c.Connect(ctx); err == nil {
			break
		}
	}
	if err != nil {
		return advise(fmt.Errorf("log in to the controller of %s at %s: %w", name, where, err),
			"Is it reachable from this host, and are user and password right? Consoles of a virtual lab: ingot lab console %s", name)
	}
	defer func() {
		// The session is closed although the command ends; the controller's answer is not needed.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = c.Close(end)
	}()
	if f, ok := p.stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		was, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return fmt.Errorf("set the terminal up: %w", err)
		}
		defer func() { _ = term.Restore(int(f.Fd()), was) }() // it fails when the terminal is gone
	}
	err = c.SOLActivate(ctx, p.stdin, p.terminal, &ipmi.SOLActivateOptions{
		PollInterval: 50 * time.Millisecond,
		OnActivated: func(uint8, io.Reader, io.Writer, *transport.ActivatePayloadResponse) {
			fmt.Fprintf(p.stderr, "Attached to the console of %s; leave it with ~X at the beginning of a line.\r\n",
				name)
		},
		OnDeactivated: func(uint8, io.Reader, io.Writer, *transport.ActivatePayloadResponse) {
			fmt.Fprint(p.stderr, "\r\nDetached.\r\n")
		},
	})
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
		return advise(fmt.Errorf("console of %s at %s: %w", name, where, err),
			"Only one user can be attached at a time, and serial over LAN must be switched on in the controller.")
	}
	return nil
}
