package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

const reservations = "/ingot/v1/reservations"

// Reservations lists the reservations that the caller may see, those first that begin first.
func (c *Client) Reservations(ctx context.Context) ([]rest.Reservation, error) {
	var out rest.Reservations
	if err := c.do(ctx, http.MethodGet, reservations, nil, &out); err != nil {
		return nil, err
	}
	return out.Reservations, nil
}

// Reservation returns one, by UUID or name.
func (c *Client) Reservation(ctx context.Context, ident string) (*rest.Reservation, error) {
	return ask[rest.Reservation](ctx, c, http.MethodGet, reservations+"/"+seg(ident), nil)
}

// Reserve makes a reservation; the error of one that can't be kept says what is missing.
func (c *Client) Reserve(ctx context.Context, body map[string]any) (*rest.Reservation, error) {
	return ask[rest.Reservation](ctx, c, http.MethodPost, reservations, body)
}

// ExtendReservation moves the end of a reservation.
func (c *Client) ExtendReservation(ctx context.Context, ident string, end time.Time) (*rest.Reservation, error) {
	return ask[rest.Reservation](ctx, c, http.MethodPatch, reservations+"/"+seg(ident),
		[]any{map[string]any{"op": "replace", "path": "/end", "value": end.UTC().Format(time.RFC3339)}})
}

// DeleteReservation removes a reservation. One that has begun ends now.
func (c *Client) DeleteReservation(ctx context.Context, ident string) error {
	return c.do(ctx, http.MethodDelete, reservations+"/"+seg(ident), nil, nil)
}
