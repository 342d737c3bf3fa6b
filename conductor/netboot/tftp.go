package netboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/pin/tftp/v3"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// serveTFTP serves the boot programs, and nothing else, until ctx ends.
func (s *Server) serveTFTP(ctx context.Context, c *net.UDPConn) error {
	srv := tftp.NewServer(func(name string, to io.ReaderFrom) error { return s.tftpRead(ctx, name, to) }, nil)
	// 1468 bytes fill an Ethernet frame; the client may request less.
	srv.SetBlockSize(1468)
	srv.SetTimeout(2 * time.Second)
	srv.SetRetries(5)
	srv.SetHook(failures(s.short))
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		srv.Shutdown() // lets transfers end, or time out
	})
	err := srv.Serve(c)
	if !stop() {
		select {
		case <-ended:
		case <-time.After(2 * time.Second): // a machine that has stopped answering
		}
	}
	if err != nil {
		return fmt.Errorf("serve TFTP: %w", err)
	}
	return nil
}

// failures is called with the error of each failed transfer, including those without a socket, which the library
// reports nowhere else.
type failures func(error)

func (failures) OnSuccess(tftp.TransferStats) {}

func (f failures) OnFailure(_ tftp.TransferStats, err error) { f(err) }

// loaderName makes a file name of the requested one: some firmware puts a slash before it, and some PXE ROMs take the
// byte that ends DHCP's options for part of the name.
func loaderName(asked string) string {
	name := strings.TrimLeft(asked, "/")
	for len(name) > 0 && (name[len(name)-1] == 0xff || name[len(name)-1] == 0) {
		name = name[:len(name)-1]
	}
	return name
}

// A name of a boot program may hold the MAC of the machine that asks for it. Any client that knows a MAC can use it, so
// it counts in mode proxy alone, where the boot script's URL proves no more.
const named = "m/"

// namedFile is the name of a boot program for one machine.
func namedFile(mac, file string) string {
	return named + strings.ReplaceAll(mac, ":", "-") + "/" + file
}

// cutName takes the MAC out of a name that namedFile made; "" of any other.
func cutName(name string) (mac, file string) {
	if rest, ok := strings.CutPrefix(name, named); ok {
		if text, file, ok := strings.Cut(rest, "/"); ok {
			if mac, ok := parseMAC(text); ok {
				return mac, file
			}
		}
	}
	return "", name
}

// timed is a file for a transfer that has to end.
type timed struct {
	r     io.Reader
	until time.Time
	reads int
}

func (t *timed) Read(b []byte) (int, error) {
	t.reads++
	if time.Now().After(t.until) {
		return 0, fmt.Errorf("it takes longer than %v", limit.TFTPTime)
	}
	return t.r.Read(b)
}

func (s *Server) tftpRead(ctx context.Context, asked string, to io.ReaderFrom) error {
	begin := time.Now()
	mac, name := cutName(loaderName(asked))
	out, _ := to.(tftp.OutgoingTransfer)
	var from netip.Addr
	if out != nil {
		peer := out.RemoteAddr()
		from = addr(peer.IP)
	}
	end, ok := s.transfers.begin(from, s.now())
	if !ok {
		s.refuse("tftp", "too often")
		s.seldom("tftp "+from.String()).Warn(
			"TFTP transfers refused: too many are under way, or the client does not answer", "from", from)
		return errors.New("too many transfers, try again later")
	}
	answered := true // a refusal is no longer than the request
	defer func() { end(answered) }()
	f, err := s.files.loader(name)
	s.short(err)
	if err != nil {
		s.refuse("tftp", "no such file")
		s.seldom("tftp "+from.String()+name).Warn("TFTP file that is not served", "file", asked, "from", from)
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("no such file")
		}
		s.log.Error("open boot program", "file", name, "err", err)
		return errors.New("the file can't be read")
	}
	defer f.Close()
	if out != nil {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		out.SetSize(info.Size())
	}
	src := &timed{r: f, until: begin.Add(limit.TFTPTime)}
	n, err := to.ReadFrom(src)
	// a block is read when the one before, or the options before the first, were acknowledged
	answered = err == nil || src.reads > 1
	switch {
	case err != nil && n == 0:
		// EDK2 asks once for the size alone and breaks off, then comes again for the file.
		s.log.Debug("TFTP transfer ended before its first block, as size probes do", "file", name, "from", from, "err",
			err)
	case err != nil:
		s.refuse("tftp", "broken off")
		s.log.Warn("TFTP transfer broke off", "file", name, "from", from, "bytes", n, "err", err)
	default:
		s.answered("tftp", "boot program")
		s.log.Info("boot program fetched", "file", name, "from", from, "bytes", n, "took",
			time.Since(begin).Round(time.Millisecond))
		who := s.client(ctx, from)
		if who == nil && mac != "" && s.cfg.Mode == Proxy {
			who = s.nodeOf(ctx, mac)
		}
		s.mark(ctx, who, node.MarkBootProgram, name)
	}
	return nil // pin/tftp has sent the error already
}
