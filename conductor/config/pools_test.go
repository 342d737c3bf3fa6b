package config

import (
	"strings"
	"testing"
	"time"
)

func TestPools(t *testing.T) {
	c := Default()
	c.Agents.Advertise = "127.0.0.1:1"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.Pools = Pools{Interval: -1, Pause: time.Hour, LongestPause: time.Minute}
	err := c.Validate()
	if err == nil || !strings.Contains(err.Error(), "pools.interval") ||
		!strings.Contains(err.Error(), "pools.longest_pause") {
		t.Errorf("Validate = %v", err)
	}
}
