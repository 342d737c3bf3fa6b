package cli

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) eraseCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "erase", Short: "Reports of erased disks: list, fetch and verify them",
		Long: `Every disk that a cleaning erases, or fails to, gets a report: which disk, by which method, what it answered, what was read back, which
level of NIST SP 800-88 that reached. The conductor signs it and keeps it beside the node.

  ingot erase list NODE
  ingot erase show NODE ID > report.json
  ingot erase key > erasure.pub                 once, from a conductor that you trust
  ingot erase verify report.json --key erasure.pub    anywhere, any time, without the conductor`,
	}, p.eraseList(), p.eraseShow(), p.eraseKey(), p.eraseVerify())
}

func (p *program) eraseList() *cobra.Command {
	return p.onNode(&cobra.Command{Use: "list NODE", Short: "List the reports of a machine's erased disks, newest first"}, nil,
		func(ctx context.Context, c *client.Client, name string) error {
			all, err := c.Erasures(ctx, name)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(map[string]any{"erasures": all})
			}
			if len(all) == 0 {
				return p.say("no disk of %s was erased; `ingot node clean %s --step deploy.erase_devices` does it", name, name)
			}
			return list(p, all, []string{"ID", "RECEIVED", "DISK", "SERIAL", "SIZE", "METHOD", "LEVEL", "RESULT"},
				func(e *rest.Erasure) []string {
					return []string{e.UUID, e.Received.Format(time.RFC3339), e.Disk, e.Serial,
						size(uint64(max(e.Size, 0))), string(e.Method), e.Level, e.Result}
				})
		})
}

func (p *program) eraseShow() *cobra.Command {
	return p.online(&cobra.Command{Use: "show NODE ID", Short: "Print a signed report",
		ValidArgsFunction: p.completeNode, Args: wants("a node and the ID of a report; `ingot erase list NODE` shows them",
			func(args []string) bool { return len(args) == 2 }),
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		doc, err := c.Erasure(ctx, args[0], args[1])
		if err != nil {
			return about(args[0], err)
		}
		return p.print(doc)
	})
}

func (p *program) eraseKey() *cobra.Command {
	return p.online(&cobra.Command{Use: "key", Short: "Print the public key with which the conductor's reports are verified"},
		nil, func(ctx context.Context, c *client.Client, _ []string) error {
			key, err := c.ErasureKey(ctx)
			if err != nil {
				return err
			}
			_, err = io.WriteString(p.stdout, key)
			return err
		})
}

func (p *program) eraseVerify() *cobra.Command {
	var keyFile string
	return local(&cobra.Command{Use: "verify FILE|- [--key FILE]", Short: "Check a signed report, without the conductor",
		Long: `Check the signature of a report, print what it says, and end with status 0 only if the disk was erased. Without --key the report's own
key is taken: then nothing was changed by accident, but who signed it is not known.`,
		Args: oneArg("one file with a signed report, or - for its standard input"),
	}, []option{
		opt("key", &keyFile, "the conductor's public key (`ingot erase key`, or erasure.pub in its data directory)"),
	}, func(_ context.Context, args []string) error {
		var key ed25519.PublicKey
		if keyFile != "" {
			b, err := os.ReadFile(keyFile)
			if err == nil {
				key, err = erasure.ParseKey(b)
			}
			if err != nil {
				return fmt.Errorf("--key: %w", err)
			}
		}
		doc, err := p.read(args[0])
		if err != nil {
			return err
		}
		v, err := erasure.Verify(doc, key)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if err := p.printErasure(v); err != nil {
			return err
		}
		switch r := v.Report; {
		case r.Result != "erased":
			return fmt.Errorf("the disk was not erased: %s", r.Error)
		case len(r.Samples.Kept) > 0:
			return errors.New("the report contradicts itself: it says erased, and that old content was read back")
		}
		return nil
	})
}

func (p *program) printErasure(v *erasure.Verified) error {
	if p.values() {
		return p.print(
			map[string]any{"signature": "good", "key_id": v.KeyID, "key_given": v.Known, "statement": v.Statement})
	}
	s, r := v.Statement, v.Report
	by := choose(v.Known, "the key that was given", "the key that it brings along: give --key to know whose that is")
	proof := fmt.Sprintf("%d places read back; %d markers and %d places of old content were gone", r.Samples.Read,
		r.Samples.Markers, r.Samples.Old)
	switch {
	case r.Samples.All:
		proof = "every byte read back; " + proof
	case r.Samples.Markers == 0:
		proof = "none: what was not written over is still there"
	case len(r.Samples.Kept) > 0:
		proof = fmt.Sprintf("%d of %d places still held what was there before", len(r.Samples.Kept), r.Samples.Read)
	}
	rows := [][]string{
		{"signature", fmt.Sprintf("good, by %s (%s)", by, v.KeyID)},
		{"node", s.NodeName + " " + s.NodeUUID},
		{"disk", fmt.Sprintf("%s, %s, serial %s, wwn %s, %s", r.Disk.Name, r.Disk.Model, r.Disk.Serial, r.Disk.WWN,
			size(uint64(max(r.Disk.Size, 0))))},
		{"method", r.Method},
		{"answer", r.Answer},
		{"proof", proof},
		{"level", r.Level + " (NIST SP 800-88)"},
		{"time", r.Started.Format(time.RFC3339) + " to " + r.Finished.Format(time.RFC3339) + "; received by " +
			s.Conductor + " " + s.Received.Format(time.RFC3339)},
		{"result", r.Result},
	}
	return p.table([]string{"REPORT", r.ID}, rows)
}
