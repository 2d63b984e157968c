"""Authentication, request limits and dependencies, shared by all dialects.

``limits`` is the guard that every request passes first, with the sender that ``auth``
identifies; ``answers`` bounds what slow clients leave unread.

Imports: net, service/domain, service/queue.
"""
