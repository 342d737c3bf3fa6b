package record

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/compare"
)

func TestSameExchangesSameBytes(t *testing.T) {
	es := []Exchange{
		{ask.Ask{Method: "PUT", Path: "/v1/x", Header: map[string]string{"B": "1", "A": "2"}, Body: "\x00{"},
			compare.Answer{Status: 400, Body: map[string]any{"b": nil, "a": "1"}}},
		{ask.Ask{Scene: 1, Method: "GET", Path: "/"},
			compare.Answer{Status: 200, Header: map[string]string{"Vary": "x"}}},
	}
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := Write(w, es); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the bytes differ")
	}
	got, err := Read(&one)
	if err != nil || !reflect.DeepEqual(got, es) {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := Read(bytes.NewReader(two.Bytes()[:two.Len()-9])); err == nil {
		t.Error("half a recording was read")
	}
}
