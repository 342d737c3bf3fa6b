package parts

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// mediaDevices are the devices that an image can be put into.
var mediaDevices = []string{"disk", "cdrom", "floppy"}

var mediaSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"device_type", "image_url"},
	Props: map[string]*rest.Schema{
		"device_type":           {Types: []string{"string"}, Enum: []any{"disk", "cdrom", "floppy"}},
		"image_url":             {Types: []string{"string"}},
		"image_download_source": {Types: []string{"string"}, Enum: []any{"http", "local", "swift"}},
	},
}

func (s *Handlers) getMedia(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	media, err := s.hardware.Management(n).VirtualMedia(ctx, n)
	if err != nil {
		return nil, err
	}
	items := make([]rest.Object, len(media))
	for i, m := range media {
		items[i] = rest.Object{{Name: "media_types", Value: m.Types}, {Name: "inserted", Value: m.Inserted},
			{Name: "image", Value: rest.Null(m.URL)}}
	}
	return &call.Reply{Status: http.StatusOK, Body: items}, nil
}

func (s *Handlers) attachMedia(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Checked("vmedia", mediaSchema)
	if err != nil {
		return nil, err
	}
	device, address := b["device_type"].(string), b["image_url"].(string)
	scheme, _, _ := strings.Cut(address, ":")
	if !strings.Contains(address, "://") {
		scheme = ""
	}
	if !slices.Contains([]string{"http", "https", "nfs", "cifs", "smb"}, strings.ToLower(scheme)) {
		return nil, rest.BadRequest("Unsupported or missing URL scheme: %s", scheme)
	}
	if source := b["image_download_source"]; source != nil && source != "http" {
		return nil, rest.BadRequest(
			"Images are given to the node's controller by their URL; set image_download_source to http.")
	}
	return s.media(ctx, c, "attach virtual media", "an image was put into the virtual "+device,
		func(ctx context.Context, n *node.Node) error {
			return s.hardware.Management(n).AttachMedia(ctx, n, device, address)
		})
}

// mediaWait is how long a request waits for virtual media: a client that asks again at once should not find the node
// locked by the first request.
const mediaWait = time.Second

// media changes virtual media after the answer, as Ironic does: controllers fetch images slowly. The node is locked
// meanwhile, and errors are in its last_error and its history, even that its driver has no virtual media.
func (s *Handlers) media(ctx context.Context, c *call.Call, what, done string,
	act func(context.Context, *node.Node) error) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	release, err := s.lock(ctx, n)
	if err != nil {
		return nil, err
	}
	finished := make(chan struct{})
	bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), vendorTime)
	s.background.Go(func() {
		defer close(finished)
		defer cancel()
		defer release(bg)
		if err := act(bg, n); err != nil {
			s.log.Warn("virtual media", "node", n.UUID, "err", err)
			s.complain(bg, c, n, what+": "+err.Error())
			return
		}
		if err := s.keep(bg, c, n, done, func(n *node.Node) { n.SetLastError("", "") }); err != nil {
			s.log.Error("what was done with virtual media is not in the history", "node", n.UUID, "err", err)
		}
	})
	wait := time.NewTimer(mediaWait)
	defer wait.Stop()
	select {
	case <-finished:
	case <-wait.C:
	case <-ctx.Done():
	}
	return call.NoContent(), nil
}

func (s *Handlers) detachMedia(ctx context.Context, c *call.Call) (*call.Reply, error) {
	var devices []string
	if asked := c.Text("device_types"); asked != nil && *asked != "" {
		devices = strings.Split(*asked, ",")
	}
	wrong := slices.DeleteFunc(slices.Clone(devices), func(d string) bool { return slices.Contains(mediaDevices, d) })
	if len(wrong) > 0 {
		return nil, rest.BadRequest("Invalid device type(s) %s (valid are %s)", strings.Join(wrong, ", "),
			strings.Join(mediaDevices, ", "))
	}
	return s.media(ctx, c, "detach virtual media", "virtual media were taken out",
		func(ctx context.Context, n *node.Node) error {
			return s.hardware.Management(n).DetachMedia(ctx, n, devices)
		})
}
