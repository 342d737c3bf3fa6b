//go:build !race

package images

const raceOn = false
