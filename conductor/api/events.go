package api

// eventRoutes are the routes of the stream of events and the log, under /ingot/v1.
func (s *Server) eventRoutes() []route { return nil }
