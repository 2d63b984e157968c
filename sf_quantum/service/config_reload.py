"""Which changes of the configuration a running service applies, and which need a restart."""

from __future__ import annotations

from sf_quantum.service.config import Configuration
from sf_quantum.validation import Section

# sections that are reloaded: they define users, their rights and their limits
_RELOADED = {
    "auth",
    "shares",
    "user_projects",
    "repeatable_users",
    "leases",
    "classes",
    "limits",
    "metrics",
}
_FILES = ("certificate", "key")


def merged(old: Configuration, new: Configuration) -> tuple[Configuration, list[str]]:
    """Merge, into the old configuration, the changes that need no restart.

    :returns: the merged configuration, and the changed keys that need a restart
    """
    fixed = sorted(Configuration.model_fields.keys() - _RELOADED - {"listen"})
    update = {key: getattr(old, key) for key in fixed}
    kept = list[str]()
    for key in fixed:
        ours, theirs = getattr(old, key), getattr(new, key)
        if ours == theirs:
            continue
        same = isinstance(ours, Section) and type(ours) is type(theirs)
        parts = type(ours).model_fields if same else ()
        changed = [
            part for part in parts if getattr(ours, part) != getattr(theirs, part)
        ]
        kept += [f"{key}.{part}" for part in changed] or [key]
    update["listen"] = listen = old.listen
    for key in type(listen).model_fields:
        ours, theirs = getattr(listen, key), getattr(new.listen, key)
        if key in _FILES and ours and theirs:
            update["listen"] = update["listen"].model_copy(update={key: theirs})
        elif ours != theirs:
            kept.append(f"listen.{key}")
    if new.auth.mode != old.auth.mode:
        # needs a restart, since the permissions of the socket depend on the mode
        update["auth"] = old.auth
        kept.append("auth.mode")
    return new.model_copy(update=update), kept
