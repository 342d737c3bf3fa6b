package netboot

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Over HTTPS there are boot images and nothing else; those who speak no TLS, or an old one, get nothing.
func TestBootImagesOverHTTPS(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	proto := httptest.NewTLSServer(http.NotFoundHandler())
	defer proto.Close()
	r, n := newImageRig(t, func(c *Config) {
		c.Interface, c.HTTPSPort = "prov", 8443
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: proto.TLS.Certificates}
		c.Authority = func() string { return "an authority" }
	})
	image, _, err := r.s.BootImage(t.Context(), r.load(n))
	if err != nil || !strings.HasPrefix(image.Address, "https://10.77.0.1:8443"+node.BootImagePath) ||
		!strings.HasPrefix(image.Plain, "http://10.77.0.1:8080"+node.BootImagePath) ||
		image.Authority != "an authority" {
		t.Fatalf("%+v, %v", image, err)
	}
	serve(t, r.s)
	roots := x509.NewCertPool()
	roots.AddCert(proto.Certificate())
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}}
	get := func(url string) (int, int) {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, len(b)
	}
	secure, size := get(image.Address)
	plain, same := get(image.Plain)
	if secure != http.StatusOK || plain != http.StatusOK || size != same || size == 0 {
		t.Errorf("%d with %d bytes over HTTPS, %d with %d over HTTP", secure, size, plain, same)
	}
	for _, path := range []string{"/", "/boot.ipxe", "/loader/snponly.efi", "/images/x", "/workload/x/config-drive.cpio",
		node.BootImagePath + "x/ingot.iso"} {
		if status, _ := get("https://10.77.0.1:8443" + path); status != http.StatusNotFound {
			t.Errorf("%s: %d", path, status)
		}
	}
	old := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if c, err := tls.Dial("tcp", "10.77.0.1:8443", old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
	c, err := net.Dial("tcp", "10.77.0.1:8443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET /boot.ipxe HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); strings.Contains(string(b), "200 OK") || strings.Contains(string(b), "#!ipxe") {
		t.Errorf("without TLS: %q", b)
	}
}
