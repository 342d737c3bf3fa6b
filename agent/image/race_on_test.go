//go:build race

package image

// raceEnabled tells that the race detector is on. It takes memory of its own, and makes what handles data ten times
// slower: tests with many cases try each kind of them once, and all of them without it, or with INGOT_FULL.
const raceEnabled = true
