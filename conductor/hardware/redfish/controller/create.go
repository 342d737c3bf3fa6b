package controller

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
)

// Create makes a member of a collection, and returns its path; "" if the service does not say where it is.
func (c *Controller) Create(ctx context.Context, collection string, body any) (path string, err error) {
	api, err := c.client(ctx)
	if err != nil {
		return "", err
	}
	resp, err := api.Post(collection, body)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if u, err := url.Parse(resp.Header.Get("Location")); err == nil && u.Path != "" {
		return u.Path, nil // of this service: another host's is not asked
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var made struct {
		ID string `json:"@odata.id"`
	}
	_ = json.Unmarshal(b, &made) // an answer without a body is fine, too
	return made.ID, nil
}

// Delete deletes a resource.
func (c *Controller) Delete(ctx context.Context, path string) error {
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	resp, err := api.Delete(path)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
