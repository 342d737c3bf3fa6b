// Package web serves the dashboard below /ui, on the listener of the API: pages, sessions, and the way from a page to
// the API.
//
// The pages are a program for the browser (ui/src, bundled into ui/dist by make generate) that is embedded here. It
// knows nothing but the public API: it calls /ui/api/v1/... and /ui/api/ingot/v1/..., and this package hands the
// request to the handler of the API with the credentials of the session's user. So access rules, limits and histories
// are those of the API, and what the pages do not offer is refused there.
//
// A session is a sealed cookie (AES-256-GCM) that holds the user's credentials; its key is derived from the CA's, which
// all conductors of a database share. That a session was signed out is in the store. No script can read the cookie or
// what is in it. A request is taken for one of our own pages only if it has the session's word in a header
// (X-Ingot-CSRF), and if the browser does not say that another site sent it (Sec-Fetch-Site, Origin). Answers allow
// nothing from elsewhere and no script or style in the page (Content-Security-Policy).
package web
