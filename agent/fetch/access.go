package fetch

import (
	"context"
	"net/http"
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// Access says how the servers of a fetch are reached, for a caller that gets it beside the URLs.
type Access struct {
	HTTPProxy, HTTPSProxy, NoProxy string // as in http_proxy, https_proxy and no_proxy; without any: the environment's
	// Authorization is the header of requests to Host (HOST or HOST:PORT, as in the URL), in place of a user and
	// password there. It is a secret.
	Authorization, Host string
}

type accessKey struct{}

// WithAccess returns a context whose fetches use a.
func WithAccess(ctx context.Context, a Access) context.Context {
	return context.WithValue(ctx, accessKey{}, a)
}

func accessOf(ctx context.Context) Access {
	a, _ := ctx.Value(accessKey{}).(Access)
	return a
}

// proxy chooses the proxy of a request.
func proxy(req *http.Request) (*url.URL, error) {
	a := accessOf(req.Context())
	if a.HTTPProxy == "" && a.HTTPSProxy == "" {
		return http.ProxyFromEnvironment(req)
	}
	c := httpproxy.Config{HTTPProxy: a.HTTPProxy, HTTPSProxy: a.HTTPSProxy, NoProxy: a.NoProxy}
	return c.ProxyFunc()(req.URL)
}

// authorize sets the header of a request, if it goes to the host that it is for.
func (a Access) authorize(req *http.Request) {
	if a.Authorization != "" && req.URL.Host == a.Host {
		req.Header.Set("Authorization", a.Authorization)
	}
}
