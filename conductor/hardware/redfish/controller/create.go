package controller

import (
	"context"
	"encoding/json"
	"net/http"
)

// Create makes a member of a collection, and returns its path; "" if the service does not say where it is.
func (c *Controller) Create(ctx context.Context, collection string, body any) (path string, err error) {
	r, err := c.Submit(ctx, http.MethodPost, collection, body)
	if err != nil || r.Location != "" {
		return r.Location, err
	}
	var made struct {
		ID string `json:"@odata.id"`
	}
	_ = json.Unmarshal(r.Body, &made) // an answer without a body is fine, too
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
