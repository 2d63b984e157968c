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
    needing_restart = list[str]()
    for key in fixed:
        old_value, new_value = getattr(old, key), getattr(new, key)
        if old_value == new_value:
            continue
        same_type = isinstance(old_value, Section) and type(old_value) is type(
            new_value
        )
        parts = type(old_value).model_fields if same_type else ()
        changed = [
            part
            for part in parts
            if getattr(old_value, part) != getattr(new_value, part)
        ]
        needing_restart += [f"{key}.{part}" for part in changed] or [key]
    update["listen"] = listen = old.listen
    for key in type(listen).model_fields:
        old_value, new_value = getattr(listen, key), getattr(new.listen, key)
        if key in _FILES and old_value and new_value:
            update["listen"] = update["listen"].model_copy(update={key: new_value})
        elif old_value != new_value:
            needing_restart.append(f"listen.{key}")
    if new.auth.mode != old.auth.mode:
        # needs a restart, since the permissions of the socket depend on the mode
        update["auth"] = old.auth
        needing_restart.append("auth.mode")
    return new.model_copy(update=update), needing_restart
