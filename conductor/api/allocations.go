package api

// allocationRoutes are the routes of allocations.
func (s *Server) allocationRoutes() []route { return nil }
