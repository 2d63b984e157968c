"""The dialect of Pasqal's warden, which QRMI's type ``pasqal-local`` speaks."""
