//go:build race

package configdrive

import "os"

// allCases tells whether a test tries all its cases: not under the race detector, which takes 50 ns for each byte of
// JSON, base64 or gzip, unless INGOT_FULL says so.
var allCases = os.Getenv("INGOT_FULL") != ""
