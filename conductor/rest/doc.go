// Package rest holds the JSON shapes and microversions of the public API, without any logic of machines or states.
//
// The shapes are those of OpenStack Ironic's Bare Metal API, so that its clients work unchanged. The fields that a
// client sees depend on the microversion it requested: the tables NodeFields, PortFields, ... say from which version on
// each field is shown, and Render makes the JSON. The same structs decode the answers in conductor/client. Absent
// values are JSON null, which Null, NullTime and nil pointers stand for; times are UTC with a "+00:00" offset and whole
// seconds.
//
// Errors have one of two bodies, both a JSON text inside a JSON string, because every client decodes that: see Error.
package rest
