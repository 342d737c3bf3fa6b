package health

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// A service with sensors and failing parts without end fills no reading; of sensors with one name one is kept.
func TestManySensors(t *testing.T) {
	c, err := controller.NewPool(controller.Options{}).Get(controller.Access{Base: url.URL{Scheme: "https", Host: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	r := &reader{c: c, r: &node.Reading{}, seen: map[[2]string]bool{}}
	for i := range 10_000 {
		r.sensor("fan", fmt.Sprint("Fan", i/2), "RPM", new(1.0), nil, status{})
		r.part("drive", fmt.Sprint(i), status{Health: "Critical"}, false)
	}
	if len(r.r.Sensors) != limit.HealthSensors || len(r.r.Parts) != limit.HealthParts || r.r.Sensors[1].Name != "Fan1" {
		t.Errorf("%d sensors, %d parts", len(r.r.Sensors), len(r.r.Parts))
	}
}
