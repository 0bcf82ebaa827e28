"""Tables, figures and pages of suites."""
