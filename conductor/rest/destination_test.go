package rest

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestSecretsStayWithTheirDestination(t *testing.T) {
	const stored = `{"ipmi_address":"192.0.2.1","ipmi_username":"u","ipmi_password":"p","redfish_password":"r","deploy_kernel":"http://h/k",
		"image_source":"oci://r/a:1","image_pull_secret":"s","portals":[{"chap_password":"c","target_portal":"a"}]}`
	for _, c := range []struct {
		name, patch, now string
		kept             []string
	}{
		{"another address", `[{"op":"add","path":"/i/ipmi_address","value":"x"}]`,
			`{"ipmi_address":"x","ipmi_password":"p"}`, []string{"ipmi_password"}},
		{"a port is added", `[{"op":"add","path":"/i/ipmi_port","value":1}]`,
			`{"ipmi_address":"192.0.2.1","ipmi_port":1,"ipmi_password":"p"}`, []string{"ipmi_password"}},
		{"the cipher suite", `[]`, `{"ipmi_address":"192.0.2.1","ipmi_cipher_suite":3,"ipmi_password":"p"}`,
			[]string{"ipmi_password"}},
		{"with its password",
			`[{"op":"add","path":"/i/ipmi_address","value":"x"},{"op":"add","path":"/i/ipmi_password","value":"p"}]`,
			`{"ipmi_address":"x","ipmi_password":"p"}`, nil},
		{"with another one", `[{"op":"add","path":"/i","value":{"ipmi_address":"x","ipmi_password":"q"}}]`,
			`{"ipmi_address":"x","ipmi_password":"q"}`, nil},
		{"with stars", `[{"op":"add","path":"/i","value":{"ipmi_address":"x","ipmi_password":"******"}}]`,
			`{"ipmi_address":"x","ipmi_password":"p"}`, []string{"ipmi_password"}},
		{"with stars after a guess",
			`[{"op":"add","path":"/i/ipmi_password","value":"g"},{"op":"add","path":"/i/ipmi_password","value":"******"}]`,
			`{"ipmi_address":"x","ipmi_password":"p"}`, []string{"ipmi_password"}},
		{"the user", `[]`,
			`{"ipmi_address":"192.0.2.1","ipmi_username":"v","ipmi_password":"p","deploy_kernel":"http://h/k"}`, nil},
		{"another registry", `[]`, `{"image_source":"oci://evil/a:1","image_pull_secret":"s"}`,
			[]string{"image_pull_secret"}},
		{"another image there", `[]`, `{"image_source":"oci://r/b:2","image_pull_secret":"s"}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			object := func(s string) (m map[string]any) {
				if err := json.Unmarshal([]byte(s), &m); err != nil {
					t.Fatal(err)
				}
				return m
			}
			was, now := object(stored), object(c.now)
			for k, v := range was { // what a case does not name is as it was
				if _, ok := now[k]; !ok {
					now[k] = v
				}
			}
			var body any
			if err := json.Unmarshal([]byte(c.patch), &body); err != nil {
				t.Fatal(err)
			}
			if _, kept := Moved(body, []string{"i"}, was, now, true); !reflect.DeepEqual(kept, c.kept) {
				t.Errorf("Moved keeps %q, want %q", kept, c.kept)
			}
		})
	}
	was := map[string]any{"portals": []any{map[string]any{"chap_password": "c", "target_portal": "a"}}}
	now := map[string]any{
		"portals": []any{map[string]any{"target_portal": "evil"},
			map[string]any{"chap_password": "c", "target_portal": "a"}}}
	if _, kept := Moved(nil, nil, was, now, false); len(kept) != 1 {
		t.Errorf("Moved keeps %q of a list with another portal", kept)
	}
}
