"""Command lines of tools that call ``sfq``, checked with the parsers of its commands.

Nothing is run. A word from an input or an expression is unknown: it may be any text.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeAlias

from cwl_utils.errors import SubstitutionError

from sf_quantum.checking.cwl import types
from sf_quantum.checking.cwl.expressions import expressions
from sf_quantum.checking.cwl.processes import Entry, Position
from sf_quantum.checking.document import suggestion
from sf_quantum.files import JSON, KeyPath, listing, mapping

OURS = "sfq"
#: function that returns the parser of ``sfq`` for a command line, with its command configured
ParserMaker: TypeAlias = Callable[[Sequence[str]], argparse.ArgumentParser]
# types whose values never look like options
_PLAIN_TYPES = (*types.FILES, "int", "long", "float", "double")
# the word after which no word is an option
_END = "--"


@dataclass(frozen=True)
class Word:
    """A word of a command line, or several unknown words.

    :param text: text of the word up to the first expression
    :param whole: whether ``text`` is the whole word
    :param least: minimum number of words that this object represents
    :param most: maximum number of words that this object represents
    :param free: whether the word may be an option
    :param sure: whether the command line of every job has the word
    """

    text: str
    where: KeyPath
    whole: bool = True
    least: int = 1
    most: float = 1
    free: bool = False
    sure: bool = True

    @property
    def literal(self) -> str | None:
        """The text of the word; ``None`` if a part of it is unknown."""
        return self.text if self.whole else None


@dataclass(frozen=True)
class Fault:
    """An error in a command line, with its path in the document."""

    where: KeyPath
    what: str
    right: str


@dataclass
class Line:
    """A command line as its parser understands it.

    :param parser: the command's parser; ``None`` if there is no such command
    :param values: values of options that the file states literally, by flag
    """

    parser: argparse.ArgumentParser | None = None
    faults: list[Fault] = field(default_factory=list)
    values: dict[str, Word] = field(default_factory=dict)

    @property
    def command(self) -> str | None:
        """The name of the command, such as ``solve`` for ``sfq solve``."""
        return self.parser.prog.partition(" ")[2] if self.parser else None

    @property
    def options(self) -> dict[str, argparse.Action]:
        """The options of the command, by flag."""
        return self.parser._option_string_actions if self.parser else {}


def read(tool: Position, parser_for: ParserMaker) -> Line | None:
    """Read and check the command line of a tool; ``None`` if it does not call ``sfq``."""
    return _read_call(_words(tool), parser_for)


def rejection(option: argparse.Action, text: str) -> str | None:
    """Return why an option rejects a value; ``None`` if it accepts the value."""
    value: object = text
    try:
        if callable(option.type):
            value = option.type(text)
    except argparse.ArgumentTypeError as error:
        return str(error)
    except (TypeError, ValueError):
        return f"{text!r:.40} does not fit"
    if option.choices is not None and value not in option.choices:
        return f"{text!r:.40}: one of {', '.join(map(str, option.choices))} expected"
    return None


def _read_call(words: Sequence[Word], parser_for: ParserMaker) -> Line | None:
    """Read the words of a command line; ``None`` if they do not call ``sfq``."""
    if not words or PurePosixPath(words[0].literal or "").name != OURS:
        return None
    line = Line()
    parser = parser_for([word.text for word in words[1:]])
    walk = _WordReader(line, parser, words[0].where, parser_for)
    walk.go(list(words[1:]))
    return line


class _WordReader:
    """Reads words as argparse does; the parser of a subcommand reads the words after it."""

    def __init__(
        self,
        line: Line,
        parser: argparse.ArgumentParser,
        where: KeyPath,
        parser_for: ParserMaker,
    ) -> None:
        self.line, self.parser, self.where = line, parser, where
        self.parser_for = parser_for
        self.given: dict[argparse.Action, Word] = {}
        # words that are neither options nor their values; each option ends a group of words
        self.groups: list[list[Word]] = [[]]
        self.positional = [a for a in parser._actions if not a.option_strings]

    @property
    def others(self) -> list[Word]:
        """The words that are neither options nor their values."""
        return [word for group in self.groups for word in group]

    def go(self, words: list[Word]) -> None:
        """Read all words."""
        # True after an unknown word, which may be an option that takes the following words.
        loose = False
        while words:
            word = words.pop(0)
            if word.literal == _END:
                self.groups[-1] += words
                break
            if word.free:
                loose = True
                self.groups[-1].append(word)
            elif self._is_option(word):
                loose = self._read_option(word, words)
                self.groups.append([])
            elif self._read_subcommand(word, words):
                return
            elif not loose:
                self.groups[-1].append(word)
        self._check_complete()

    def _is_option(self, word: Word) -> bool:
        """Return whether argparse reads a word as an option."""
        text, parser = word.text, self.parser
        if not text.startswith("-") or len(text) == 1:
            return False
        if text in parser._option_string_actions:
            return True
        if text.partition("=")[0] in parser._option_string_actions:
            return True
        is_negative = parser._negative_number_matcher.match(text)
        if is_negative and not parser._has_negative_number_optionals:
            return False
        return " " not in text

    def _read_option(self, word: Word, words: list[Word]) -> bool:
        """Read an option with its values; return whether further words may be its values."""
        actions = self.parser._option_string_actions
        flag, equals, text = word.text.partition("=")
        if word.text in actions:
            flag, equals = word.text, ""
        if not (word.whole or equals):
            return True  # the rest of the word is unknown
        action = actions.get(flag)
        if action is None:
            what = f"{self.parser.prog} has no option {flag}"
            self._fault(word, what, suggestion(flag, actions))
            return True
        self._record_option(action, word)
        least, most = _counts(action)
        if not equals:
            return self._read_values(action, flag, word, words)
        if most == 0:
            what = f"{self.parser.prog} {flag} takes no value"
            self._fault(word, what, f"write {flag}")
        elif least > 1:
            what = f"{self.parser.prog} {flag} takes {least} values"
            self._fault(word, what, "write them behind it")
        else:
            self._value(action, flag, replace(word, text=text))
        return False

    def _read_values(
        self, action: argparse.Action, flag: str, word: Word, words: list[Word]
    ) -> bool:
        """Read the values after an option; return whether further words may be its values."""
        least, most = _counts(action)
        count = 0
        while words and count < most and words[0].literal != _END:
            if words[0].free or words[0].least != 1 or words[0].most != 1:
                return True
            if self._is_option(words[0]):
                break
            self._value(action, flag, words.pop(0))
            count += 1
        if count < least:
            what = f"{self.parser.prog} {flag} has no value"
            self._fault(word, what, "write one behind it")
        return False

    def _record_option(self, action: argparse.Action, word: Word) -> None:
        """Record an option, and report a fault if an earlier option excludes it."""
        for group in self.parser._mutually_exclusive_groups:
            others = {*group._group_actions} & {*self.given} - {action}
            if action in group._group_actions and word.sure and others:
                other = min(others, key=lambda action: action.dest)
                if self.given[other].sure:
                    names = " and ".join(sorted(map(_name, (other, action))))
                    what = f"{self.parser.prog} has {names}"
                    self._fault(word, what, "keep one of them")
        self.given[action] = word

    def _value(self, action: argparse.Action, flag: str, word: Word) -> None:
        """Record an option's value, and report a value that the option rejects."""
        if word.literal is None:
            return
        self.line.values[flag] = word
        if (what := rejection(action, word.literal)) is not None:
            right = f"it is the value of {self.parser.prog} {flag}"
            if action.choices is not None:
                what = f"{word.text!r:.40} is not a value of {self.parser.prog} {flag}"
                right = suggestion(word.literal, map(str, action.choices))
            self._fault(word, what, right)

    def _read_subcommand(self, word: Word, words: list[Word]) -> bool:
        """Let a subcommand read the remaining words; return whether there are subcommands."""
        action = next(iter(self.positional), None)
        if not isinstance(action, argparse._SubParsersAction):
            return False
        if word.literal is None:
            return True
        self.line.parser = None
        if word.literal not in action.choices:
            what = f"{self.parser.prog} has no command {word.literal}"
            self._fault(word, what, suggestion(word.literal, action.choices))
            return True
        inner = action.choices[word.literal]
        self.line.parser = inner
        _WordReader(self.line, inner, word.where, self.parser_for).go(words)
        return True

    def _check_complete(self) -> None:
        """Check the required options and the positional arguments."""
        runs_another = self.parser.prog == f"{OURS} lease"
        if runs_another and (inner := _read_call(self.others, self.parser_for)):
            self.line.faults += inner.faults
        if self.line.faults or any(
            isinstance(a, argparse._HelpAction | argparse._VersionAction)
            for a in self.given
        ):
            return
        if not any(word.free for word in self.others):
            self._check_required()
        self._check_positional()

    def _check_required(self) -> None:
        """Report required options and arguments that are missing."""
        names = [
            _name(action)
            for action in self.parser._actions
            if action.required and action.option_strings and action not in self.given
        ]
        groups = [
            " or ".join(map(_name, group._group_actions))
            for group in self.parser._mutually_exclusive_groups
            if group.required and not {*group._group_actions} & {*self.given}
        ]
        least = sum(least for least, _ in map(_counts, self.positional))
        if sum(word.most for word in self.others) < least:
            names += [_name(a) for a in self.positional if _counts(a)[0]][-1:]
        if names or groups:
            what = f"{self.parser.prog} needs {', '.join([*names, *groups])}"
            self.line.faults.append(Fault(self.where, what, "add it"))

    def _check_positional(self) -> None:
        """Check positional arguments; the words of each are in one group."""
        actions = [*self.positional]
        for group in self.groups:
            if any(word.free or not word.least for word in group):
                return
            words = [*group]
            while words and actions:
                action = actions.pop(0)
                most = _counts(action)[1]
                count = len(words) if most == math.inf else int(most)
                for word in words[:count]:
                    self._value(action, _name(action), word)
                words = words[count:]
            for word in words[:1]:
                what = f"{self.parser.prog} takes no argument {word.text!r:.40}"
                if not word.whole:
                    what = f"{self.parser.prog} takes no argument without an option"
                self._fault(word, what, "remove it, or write its option before it")
                return

    def _fault(self, word: Word, what: str, right: str) -> None:
        self.line.faults.append(Fault(word.where, what, right))


def _counts(action: argparse.Action) -> tuple[int, float]:
    """Return the minimum and maximum number of values of an option or argument."""
    match action.nargs:
        case None:
            return 1, 1
        case int(number):
            return number, number
        case argparse.OPTIONAL:
            return 0, 1
        case argparse.ONE_OR_MORE | argparse.PARSER:
            return 1, math.inf
        case _:
            return 0, math.inf


def _name(action: argparse.Action) -> str:
    return max(action.option_strings, key=len, default=None) or str(
        action.metavar or action.dest
    )


def _words(tool: Position) -> list[Word]:
    """Return the words of a tool's command line, in StreamFlow's order.

    The words end before a word that a shell may interpret, such as ``|``.
    """
    body, where = tool.body, tool.where
    base = body.get("baseCommand")
    words = [
        Word(str(text), (*where, "baseCommand", *_index_path(base, number)))
        for number, text in enumerate(listing(base))
    ]
    parts: list[tuple[tuple[int, str], list[Word]]] = []
    arguments = body.get("arguments")
    for number, item in enumerate(listing(arguments)):
        below: KeyPath = (*where, "arguments", *_index_path(arguments, number))
        parts.append((_sort_key(item, ""), _argument(item, below)))
    for entry in tool.entries("inputs"):
        binding = mapping(entry.body).get("inputBinding")
        parts.append((_sort_key(binding, entry.name), [*_input(entry)]))
    # sorted() is stable, so arguments of equal position keep their order, before the inputs.
    for _, part in sorted(parts, key=lambda pair: pair[0]):
        words += part
    if "ShellCommandRequirement" not in tool.features:
        return words
    shell = [n for n, word in enumerate(words) if word.where == ()]
    return [*words[: shell[0]], _unknown_words(())] if shell else words


def _index_path(value: JSON, number: int) -> tuple[int, ...]:
    return (number,) if isinstance(value, list) else ()


def _sort_key(binding: JSON, name: str) -> tuple[int, str]:
    position = mapping(binding).get("position")
    return (position if isinstance(position, int) else 0, name)


def _unknown_words(where: KeyPath) -> Word:
    return Word("", where, whole=False, least=0, most=math.inf, free=True)


def _argument(item: JSON, where: KeyPath) -> list[Word]:
    """Return the words of an entry of ``arguments``."""
    content = mapping(item)
    if content.get("shellQuote") is False or isinstance(content.get("position"), str):
        return [_unknown_words(())]
    value = content.get("valueFrom") if content else item
    below = (*where, "valueFrom") if content else where
    if not isinstance(value, str):
        return [_unknown_words(where)]
    word = _text(value, below)
    prefix = content.get("prefix")
    if not isinstance(prefix, str):
        return [word]
    if content.get("separate") is False:
        return [replace(word, text=f"{prefix}{word.text}", free=False, least=1, most=1)]
    return [Word(prefix, (*where, "prefix")), word]


def _text(text: str, where: KeyPath) -> Word:
    """Return the word for a text that may contain expressions."""
    try:
        in_text = [*expressions(text)]
    except SubstitutionError:
        return _unknown_words(where)
    if not in_text:
        return Word(text, where)
    if text.strip() == in_text[0]:  # the value may be a list, or null
        return _unknown_words(where)
    before = text.partition(in_text[0])[0]
    return Word(before, where, whole=False, free=not before)


def _input(entry: Entry) -> Iterator[Word]:
    """Yield the words of an input, if it is on the command line."""
    body, where = mapping(entry.body), entry.where
    if _may_be_record(types.read(body.get("type"))):
        yield _unknown_words(where)  # the fields have their own bindings
        return
    is_optional = types.is_optional(body) and "default" not in body
    for binding, below, kind in _bindings(body, where):
        word = _value_words(binding, kind, below)
        prefix, place = binding.get("prefix"), (*below, "prefix")
        sure = not is_optional and kind != "boolean" and "[" not in kind
        if not isinstance(prefix, str):
            yield word if sure else replace(word, least=0)
        elif kind == "boolean":
            yield Word(prefix, place, sure=False)
        elif binding.get("separate") is False:
            yield Word(prefix, place, whole=False, sure=sure)
        else:
            yield Word(prefix, place, sure=sure)
            # After the prefix of a list, there is at least one item.
            if kind:
                yield Word("", below, whole=False)
            if not kind or ("[" in kind and "itemSeparator" not in binding):
                yield replace(word, least=0)


def _may_be_record(declared: Iterable[types.Type]) -> bool:
    return any(
        alternative.name in ("record", types.UNKNOWN)
        or _may_be_record(alternative.items)
        for alternative in declared
    )


def _bindings(
    body: dict[str, JSON], where: KeyPath
) -> Iterator[tuple[dict[str, JSON], KeyPath, str]]:
    """Yield the bindings of an input and of its list's items: binding, key path, type."""
    binding = mapping(body.get("inputBinding"))
    for below, item in _schemas(body.get("type"), (*where, "type")):
        inner = mapping(item.get("inputBinding"))
        if item.get("type") == "array" and inner:
            yield inner, (*below, "inputBinding"), _kind(inner, item.get("items"))
            binding = {} if set(binding) <= {"position"} else binding
    if "inputBinding" in body and (binding or body["inputBinding"] == {}):
        yield binding, (*where, "inputBinding"), _kind(binding, body.get("type"))


def _kind(binding: dict[str, JSON], declared: JSON) -> str:
    """Return the type of a value that a binding passes; empty if the type is uncertain."""
    kinds = [type_ for type_ in types.read(declared) if type_.name != types.NULL]
    if len(kinds) != 1 or binding.get("valueFrom") is not None:
        return ""
    inner = kinds[0].items if kinds[0].name == "array" else tuple(kinds)
    if any(
        type_.name not in (*_PLAIN_TYPES, "string", "enum", "boolean")
        for type_ in inner
    ):
        return ""
    return str(kinds[0])


def _schemas(
    declared: JSON, where: KeyPath
) -> Iterator[tuple[KeyPath, dict[str, JSON]]]:
    for number, item in enumerate(listing(declared)):
        below = (*where, *_index_path(declared, number))
        if isinstance(item, dict):
            yield below, item


def _value_words(binding: dict[str, JSON], kind: str, where: KeyPath) -> Word:
    """Return the words of a value, without its prefix."""
    if binding.get("shellQuote") is False or isinstance(binding.get("position"), str):
        return _unknown_words(())
    if kind in _PLAIN_TYPES:
        return Word("", where, whole=False)
    if kind.removesuffix("[]") in _PLAIN_TYPES:
        return Word("", where, whole=False, least=0, most=math.inf)
    return _unknown_words(where)
