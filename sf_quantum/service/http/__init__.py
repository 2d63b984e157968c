"""Authentication, request limits and dependencies, shared by all dialects.

Every request passes ``guard`` first, with the sender that ``auth`` identifies, by the
``tokens`` of a file or otherwise; ``answers`` bounds what slow clients leave unread.

Imports: net, service/domain, service/queue.
"""
