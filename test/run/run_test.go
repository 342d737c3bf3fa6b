package main

import (
	"strings"
	"testing"
)

func TestUnknownNamesAreRefused(t *testing.T) {
	dirs := map[string]string{module + "/agent/disk": "x"}
	for _, o := range []options{
		{packages: "all", jobs: "none"}, {packages: "agent/disk", jobs: "test/e2e,agent/disk/erase"},
		{packages: "none", jobs: "test/e2e:TestBIOS"},
	} {
		if err := o.known(dirs); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []options{
		{packages: "agent/none", jobs: "none"}, {packages: "none", jobs: "test/none"},
		{packages: "none", jobs: "agent/disk/erase:TestX"},
	} {
		if err := o.known(dirs); err == nil || !strings.Contains(err.Error(), "there is no such") {
			t.Errorf("%+v: error %v", o, err)
		}
	}
}
