"""Many design points: axes, conditions, the directory of a sweep, and fronts."""
