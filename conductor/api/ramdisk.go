package api

// ramdiskRoutes are the routes of what a stock agent calls, and events of Neutron.
func (s *Server) ramdiskRoutes() []route { return nil }
