package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/ingot-metal/ingot/conductor/node"
)

// ImageService is OpenStack's image service.
type ImageService interface {
	// Describe returns the keys of instance_info that the service knows of an image, nil for those to take away; none
	// when the source is none of its images. An error about the image is an *InvalidError.
	Describe(ctx context.Context, source string) (map[string]any, error)
	// Address returns where the agent of a node gets an image of the service in the node's present job.
	Address(n *node.Node, id string) string
}

// ServiceError says that a service which the request needs can't be asked.
type ServiceError struct{ Err error }

func (e *ServiceError) Error() string { return e.Err.Error() }
func (e *ServiceError) Unwrap() error { return e.Err }

// described has the image service's knowledge of an image.
type described struct {
	source string
	keys   map[string]any
}

// describe asks the image service about the image of a node that is to be deployed. It takes time, so it is done before
// the transaction that stores the request. An error is an *InvalidError or a *ServiceError.
func (e *Engine) describe(ctx context.Context, n *node.Node) (described, error) {
	source, _ := n.InstanceInfo["image_source"].(string)
	if e.cfg.Images == nil || source == "" {
		return described{}, nil
	}
	keys, err := e.cfg.Images.Describe(ctx, source)
	var invalid *InvalidError
	if err != nil && !errors.As(err, &invalid) {
		err = &ServiceError{fmt.Errorf("look up image %s: %w", source, err)}
	}
	return described{source, keys}, err
}

// apply puts it into a node's instance_info, unless that names another image by now.
func (d described) apply(n *node.Node) {
	if source, _ := n.InstanceInfo["image_source"].(string); d.keys == nil || source != d.source {
		return
	}
	info := maps.Clone(n.InstanceInfo)
	for k, v := range d.keys {
		if v == nil || v == "" {
			delete(info, k)
		} else {
			info[k] = v
		}
	}
	n.InstanceInfo = info
}
