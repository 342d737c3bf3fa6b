package api

// nodePartRoutes are the routes of parts of a node: children, firmware, BIOS settings, indicators, virtual media, RAID, boot mode, console.
func (s *Server) nodePartRoutes() []route { return nil }
