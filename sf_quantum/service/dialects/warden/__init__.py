"""The dialect of Pasqal's warden, which QRMI's type ``pasqal-local`` uses.

``routes`` has sessions and jobs, ``accounting`` reports for admins, ``models`` the body of a
job, and ``dialect`` the dialect's class.
"""
