"""WikiMem: what it measures of facts about people, and whose facts are asked for."""
