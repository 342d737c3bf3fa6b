// Package glance finds images in OpenStack's image service, Glance, and streams them to agents.
//
// Nova names an image by its UUID alone; others may use its name, which Describe replaces by the UUID. It looks up
// what instance_info needs besides, its digest above all, as Ironic does. The agent gets an address at the conductor,
// which reads from Glance with a token of its own and passes ranges on: no token of OpenStack reaches a machine. That
// address is good for one node while one job lasts, for it carries a code made of both, which any conductor of the site
// can check.
//
// Who may deploy which image is Glance's to say, but Glance sees this server's user, not the client. So Describe itself
// refuses images that the client's project could not see.
package glance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Config says how Glance is reached, and how agents reach this conductor.
type Config struct {
	URL string // Glance's address, with or without /v2
	// Login returns a token of this server's own user, and Forget drops one that Glance refused.
	Login  func(ctx context.Context) (string, error)
	Forget func(token string)
	CAFile string // certificates that sign Glance's and Swift's; empty: those of the machine
	// Container is the URL of Swift's container with Glance's images; empty: agents get no temporary URLs. KeyFile has
	// the key that signs them; empty: the account's own is asked for.
	Container, KeyFile string

	Base string // address of the HTTP server for machines, without a slash at its end
	// Local reports whether the conductor itself has an image file of that name: then a bare name means that file.
	Local func(name string) bool

	Key []byte // makes the codes in addresses; the same on all conductors
	// Node finds a node; an error for which NotFound holds says that it does not exist.
	Node     func(ctx context.Context, uuid string) (*node.Node, error)
	NotFound func(error) bool
}

// Service is Glance, as seen by a conductor. Safe for concurrent use.
type Service struct {
	cfg   Config
	base  string // with /v2
	swift *swift // nil: images are not fetched from there
	http  *http.Client
	log   *slog.Logger
}

// lookupTime bounds one lookup, which a client waits for.
const lookupTime = 10 * time.Second

// New checks the configuration. It does not connect: Glance may come up later.
func New(cfg Config, log *slog.Logger) (*Service, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the address of Glance %q is not an http or https address such as https://glance.example:9292",
			cfg.URL)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v2")
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: lookupTime}).DialContext
	transport.ResponseHeaderTimeout = 3 * lookupTime // a store that is slow with the first byte
	transport.MaxResponseHeaderBytes = limit.KeystoneHeader
	transport.DisableCompression = true // ranges are those of the image
	if cfg.CAFile != "" {
		trust, err := keyfile.Trust(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read Glance's CA: %w", err)
		}
		transport.TLSClientConfig = trust
	}
	var store *swift
	if cfg.Container != "" {
		if store, err = newSwift(cfg.Container, cfg.KeyFile); err != nil {
			return nil, err
		}
	}
	return &Service{cfg: cfg, base: u.String() + "/v2", swift: store, log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		// The token is for Glance, not for whomever it might redirect to.
		http: &http.Client{Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// image is Glance's record of an image.
type image struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Status     string `json:"status"`
	Visibility string `json:"visibility"`
	Owner      string `json:"owner"`
	DiskFormat string `json:"disk_format"`
	Container  string `json:"container_format"`
	Algo       string `json:"os_hash_algo"`
	Hash       string `json:"os_hash_value"`
	MD5        string `json:"checksum"`
	Kernel     string `json:"kernel_id"`
	Ramdisk    string `json:"ramdisk_id"`
}

// Describe returns the keys of instance_info that Glance knows of an image; none when the source is not an image of
// Glance.
// Errors about the image are *node.InvalidError; others mean that Glance could not be asked.
func (s *Service) Describe(ctx context.Context, source string) (map[string]any, error) {
	id, ok := instance.GlanceID(source)
	name, certain := instance.GlanceName(source)
	switch {
	case ok:
	case certain && name == "":
		return nil, node.Invalidf("image_source glance:// has no name or ID of an image after it")
	case name == "" || !certain && s.cfg.Local(name):
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	var i image
	var err error
	if ok {
		i, err = s.byID(ctx, id)
	} else if i, err = s.byName(ctx, name); err == nil && i.ID == "" {
		if !certain {
			return nil, nil // a file that will be put there
		}
		err = node.Invalidf("Image %q could not be found: Glance has no image of that name, or the project of this request may not use it", name)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case i.Status != "active":
		return nil, node.Invalidf("image %s is %s in Glance, and has no data to write: upload it, or name another", i.ID,
			i.Status)
	case i.Kernel != "" || i.Ramdisk != "":
		return nil, node.Invalidf(
			"image %s is a partition image with kernel_id and ramdisk_id: use a whole-disk image with a boot loader", i.ID)
	case i.Container != "" && i.Container != "bare":
		return nil, node.Invalidf("image %s has the container format %s: Ingot writes images of the format bare", i.ID,
			i.Container)
	}
	// What an earlier image left is replaced, too.
	out := map[string]any{"image_disk_format": i.DiskFormat, "image_os_hash_algo": i.Algo,
		"image_os_hash_value": i.Hash, "image_checksum": nil}
	if i.Hash == "" { // an image of old
		out["image_os_hash_algo"], out["image_os_hash_value"], out["image_checksum"] = nil, nil, i.MD5
	}
	if !ok { // what is written, and written again by a rebuild, is the image of today
		out["image_source"] = i.ID
	}
	return out, nil
}

// byID finds an image that the client of the request may use.
func (s *Service) byID(ctx context.Context, id string) (image, error) {
	i := image{}
	found, err := s.get(ctx, "/images/"+id, &i)
	if err != nil {
		return i, err
	}
	if found {
		i.ID = id
		found, err = s.visible(ctx, i)
	}
	if err == nil && !found {
		err = node.Invalidf(
			"Image %s could not be found: Glance has no image of that ID, or the project of this request may not use it", id)
	}
	return i, err
}

// sameName bounds the images of one name that are looked at.
const sameName = 100

// byName finds the one image of that name which the client of the request may use; the zero image: there is none.
func (s *Service) byName(ctx context.Context, name string) (image, error) {
	var list struct {
		Images []image `json:"images"`
	}
	q := url.Values{"name": {name}, "visibility": {"all"}, "limit": {strconv.Itoa(sameName)}}
	if _, err := s.get(ctx, "/images?"+q.Encode(), &list); err != nil {
		return image{}, err
	}
	if len(list.Images) == sameName {
		return image{}, node.Invalidf("Glance has too many images with the name %q: give the ID of one", name)
	}
	var may []image
	for _, i := range list.Images {
		id, ok := instance.GlanceID(i.ID)
		if i.ID = id; !ok || i.Name != name {
			continue
		}
		if ok, err := s.visible(ctx, i); err != nil {
			return image{}, err
		} else if ok {
			may = append(may, i)
		}
	}
	// One that is being uploaded, or was deactivated, is not in the way of one that can be used.
	usable := slices.DeleteFunc(slices.Clone(may), func(i image) bool { return i.Status != "active" })
	if len(usable) > 0 {
		may = usable
	}
	switch len(may) {
	case 0:
		return image{}, nil
	case 1:
		return may[0], nil
	}
	ids := make([]string, len(may))
	for k, i := range may {
		ids[k] = i.ID
	}
	return image{}, node.Invalidf("Glance has several images with the name %q: give the ID of one of %s", name,
		strings.Join(ids, ", "))
}

// visible reports whether the client of a request may use an image.
func (s *Service) visible(ctx context.Context, i image) (bool, error) {
	by := node.RequesterOf(ctx)
	switch {
	case by.Trusted || i.Visibility == "public" || i.Visibility == "community":
		return true, nil
	case by.Project == "":
		return false, nil
	case i.Owner == by.Project:
		return true, nil
	case i.Visibility != "shared":
		return false, nil
	}
	var member struct {
		Status string `json:"status"`
	}
	found, err := s.get(ctx, "/images/"+i.ID+"/members/"+url.PathEscape(by.Project), &member)
	return found && member.Status != "rejected", err
}

// get reads an object of Glance's.
func (s *Service) get(ctx context.Context, path string, out any) (found bool, err error) {
	resp, err := s.ask(ctx, http.MethodGet, path, nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit.KeystoneBody))
	switch {
	case err != nil:
		return false, fmt.Errorf("read Glance's answer: %w", err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest:
		return false, nil
	case resp.StatusCode != http.StatusOK:
		return false, refused(resp.StatusCode)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return false, fmt.Errorf("read Glance's answer: %w", err)
	}
	return true, nil
}

func refused(status int) error {
	if status == http.StatusForbidden {
		return errors.New(
			"answer 403 of Glance: this server's user in Keystone may not read the image; give it the role admin, or share the image with its project")
	}
	return fmt.Errorf("answer %d of Glance", status)
}

// ask sends a request with a token, and once more with a new one when Glance refuses that.
func (s *Service) ask(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	return s.askAt(ctx, method, s.base+path, header)
}

// askAt is ask for a whole address.
func (s *Service) askAt(ctx context.Context, method, address string, header http.Header) (*http.Response, error) {
	for again := false; ; again = true {
		token, err := s.cfg.Login(ctx)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, method, address, nil)
		if err != nil {
			return nil, fmt.Errorf("ask Glance: %w", err)
		}
		for k, v := range header {
			req.Header[k] = v
		}
		req.Header.Set("X-Auth-Token", token)
		resp, err := s.http.Do(req)
		if err != nil {
			return nil, fmt.Errorf("ask Glance: %w", err)
		}
		if resp.StatusCode != http.StatusUnauthorized || again {
			return resp, nil
		}
		resp.Body.Close()
		s.cfg.Forget(token)
	}
}
