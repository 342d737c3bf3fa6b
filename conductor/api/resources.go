package api

import "slices"

// resourceRoutes are the routes of chassis, portgroups, volume connectors and targets, inspection rules.
func (s *Server) resourceRoutes() []route {
	return slices.Concat(s.chassisRoutes(), s.portgroupRoutes(), s.volumeRoutes(), s.inspectionRules().routes())
}
