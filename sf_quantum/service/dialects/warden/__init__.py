"""The dialect of Pasqal's warden, which QRMI's type ``pasqal-local`` uses.

Warden is Pasqal's QPU service. ``routes`` contains sessions and jobs, ``accounting`` contains
reports for admins, ``models`` the body of a job, and ``dialect`` the dialect's class.
"""
