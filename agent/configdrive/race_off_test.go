//go:build !race

package configdrive

// allCases tells whether a test tries all its cases.
const allCases = true
