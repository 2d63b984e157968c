"""Planning: simulates allocation strategies for hybrid applications, and recommends one."""
