"""The page Size by its parts: what it asks for, the recommendation, designs against the rate, a trace, trade-offs."""
