"""Pictures of a topology: its layout, its SVG, and the order in which Java's collections list its nodes."""
