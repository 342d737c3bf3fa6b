package api

// resourceRoutes are the routes of chassis, portgroups, volume connectors and targets, inspection rules.
func (s *Server) resourceRoutes() []route { return s.chassisRoutes() }
