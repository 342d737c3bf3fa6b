package main

import (
	"context"
	"fmt"
	"log"

	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/noauth"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/nodes"
)

func main() {
	client, err := noauth.NewBareMetalNoAuth(noauth.EndpointOpts{IronicEndpoint: "http://127.0.0.1:6385/v1"})
	if err != nil {
		log.Fatal(err)
	}
	client.Microversion = "1.89"
	node, err := nodes.Create(context.Background(), client,
		nodes.CreateOpts{Driver: "fake-hardware", Name: "second"}).Extract()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(node.Name, "is in state", node.ProvisionState)
}
