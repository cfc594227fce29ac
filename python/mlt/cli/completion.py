"""``mlt completion``: completion of commands, options and their words in a shell.

The shell's function calls ``mlt`` with the words so far in a variable. ``mlt`` walks from command to command, of click
or of typer's copy of it, and imports only the modules on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any

import typer

from mlt.cli.help_text import choices_of, short_help, takes_value
from mlt.cli.main import COMPLETION_VARIABLE as VARIABLE
from mlt.cli.style import App

# In the variable each word has a newline, and a period follows the last, for shells cut trailing newlines off; the last
# word is the one to complete.
# Files, and behind ``--`` the words of another program, are the shell's own: each function falls back to them when mlt
# has no words.
_BASH = """\
_mlt_complete() {
    local IFS=$'\\n'
    COMPREPLY=($(%(variable)s="$(printf '%%s\\n' "${COMP_WORDS[@]:1:COMP_CWORD}"; printf .)" mlt 2>/dev/null | cut -f1))
    if [[ ${#COMPREPLY[@]} == 0 && ${COMP_WORDS[COMP_CWORD - 1]} == -- ]]; then
        COMPREPLY=($(compgen -c -- "${COMP_WORDS[COMP_CWORD]}" | sort -u))
    fi
}
complete -o default -F _mlt_complete mlt
"""
_ZSH = """\
#compdef mlt
_mlt_complete() {
    local -a found
    local line
    local -i dashes=${words[(i)--]}
    for line in "${(@f)$(%(variable)s="$(printf '%%s\\n' "${(@)words[2,CURRENT]}"; printf .)" mlt 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${${line%%%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( $#found )); then _describe mlt found; return; fi
    if (( dashes < CURRENT )); then words=("${(@)words[dashes + 1,-1]}"); (( CURRENT -= dashes )); _normal; return; fi
    [[ ${words[CURRENT]} == --*=* ]] && compset -P '*='
    _files
}
compdef _mlt_complete mlt
"""
_FISH = """\
function __mlt_complete
    set -l token (commandline -ct)
    set -l before (commandline -opc)[2..-1]
    set -l found (%(variable)s=(begin; printf '%%s\\n' $before $token; printf .; end | string collect) mlt 2>/dev/null)
    if set -q found[1]
        printf '%%s\\n' $found
    else if set -l dashes (contains -i -- -- $before)
        complete -C (string join ' ' -- (string escape -- $before[(math $dashes + 1)..-1]) "$token")
    else if string match -q -- '--*=*' "$token"
        set -l files (__fish_complete_path (string replace -r '^[^=]*=' '' -- $token))
        printf '%%s\\n' (string replace -r '=.*' '=' -- $token)$files
    else
        __fish_complete_path "$token"
    end
end
complete -c mlt -f -a '(__mlt_complete)'
"""


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


_SCRIPTS = {Shell.bash: _BASH, Shell.zsh: _ZSH, Shell.fish: _FISH}
app = App()


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Shell.")]) -> None:
    """Print a shell's completion of mlt's commands and options.

    \b
    bash: eval "$(mlt completion bash)"  # in ~/.bashrc
    zsh: eval "$(mlt completion zsh)"    # in ~/.zshrc, after compinit
    fish: mlt completion fish | source   # in ~/.config/fish/config.fish
    """
    typer.echo(_SCRIPTS[shell] % {"variable": VARIABLE}, nl=False)


def _of_perf(name: str) -> Callable[[], Iterable[str]]:
    def words() -> Iterable[str]:
        from mlt.collectives import ALGORITHMS
        from mlt.perf import options

        return {
            "--algorithm": (options.AUTOMATIC, *ALGORITHMS),
            "--compare": (*options.TRANSPORTS, options.ALL),
        }[name]

    return words


def _switch_systems() -> Iterable[str]:
    from mlt.switch_configs.registry import targets

    return targets()


# Command or group -> option or argument -> its words, where the command reads them as text. Of a list, those of each
# entry.
_WORDS: dict[str, dict[str, Callable[[], Iterable[str]]]] = {
    "doctor": {"--target": _switch_systems},
    "perf": {name: _of_perf(name) for name in ("--algorithm", "--compare")},
    "switch": {"--target": _switch_systems},
    "switch facts": {"target": _switch_systems},
}
_LISTS = ("--algorithm", "--compare")


def answer(command: Any, words: str) -> None:
    """Print the completions of the last of ``words``, one per line: word, tab, help."""
    before, last, kept = _joined(words.removesuffix(".").removesuffix("\n").split("\n"))
    for word, text in candidates(command, before, last):
        sys.stdout.write(f"{word.removeprefix(kept)}\t{text}\n")


def _joined(words: list[str]) -> tuple[list[str], str, str]:
    """The words before the last, the last, and what of the last the shell keeps.

    Bash breaks ``--option=value`` into three words, and replaces only the one behind the cursor.
    """
    found: list[str] = []
    kept = ""
    for word in words:
        if word == "=" and found and found[-1].startswith("--") and "=" not in found[-1]:
            found[-1] += "="
            kept = found[-1]
        elif kept and found[-1] == kept:
            found[-1] += word
        else:
            found.append(word)
            kept = ""
    return found[:-1], found[-1], kept


def candidates(command: Any, before: list[str], last: str) -> list[tuple[str, str]]:
    """The words that may stand after ``before`` and begin with ``last``, each with its help; none: a file's name."""
    command = _resolved(command)
    path = "mlt"
    waiting: Any = None  # the option whose value comes next
    arguments = 0
    for word in before:
        ctx = _context(command, path)
        option = _option(command, word)
        if waiting is not None:
            waiting = None
        elif word == "--":
            return []  # another program's words
        elif option is not None:
            waiting = option if takes_value(option) and "=" not in word else None
        elif hasattr(command, "list_commands"):
            found = command.get_command(ctx, word)
            if found is None:
                return []
            command, path, arguments = _resolved(found), f"{path} {word}", 0
        else:
            arguments += 1
    if waiting is not None:
        found = [(choice, "") for choice in _values(path, waiting, last)]
    elif last.startswith("--") and "=" in last:
        option = _option(command, last)
        name, _, value = last.partition("=")
        choices = _values(path, option, value) if option is not None and takes_value(option) else []
        found = [(f"{name}={choice}", "") for choice in choices]
    elif last.startswith("-"):
        found = _options(command)
    elif hasattr(command, "list_commands"):
        ctx = _context(command, path)
        members = ((name, command.get_command(ctx, name)) for name in command.list_commands(ctx))
        found = [(name, short_help(one)) for name, one in members if not one.hidden]
    else:
        places = [one for one in command.params if one.param_type_name == "argument"]
        choices = _values(path, places[arguments], last) if arguments < len(places) else []
        found = [(choice, "") for choice in choices]
    return [one for one in found if one[0].startswith(last)]


def _values(path: str, param: Any, begun: str) -> list[str]:
    """The words that a parameter takes; of a list, with the entries before the last of ``begun``."""
    if choices := choices_of(param):
        return choices
    head = begun.rpartition(",")[0] if set(_LISTS) & set(param.opts) else ""
    return [f"{head},{word}" if head else word for word in words_of(path, param)]


def words_of(path: str, param: Any) -> list[str]:
    """The words that a parameter of the command ``path`` (``mlt perf``) knows, where the command reads it as text."""
    words = path.partition(" ")[2]
    for name in (*param.opts, param.name):
        found = _WORDS.get(words, {}).get(name) or _WORDS.get(words.partition(" ")[0], {}).get(name)
        if found is not None:
            return list(found())
    return []


def _options(command: Any) -> list[tuple[str, str]]:
    return [
        (name, (param.help or "").partition(". ")[0].rstrip("."))
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    ] + [("--help", "Show this message and exit")]


def _option(command: Any, word: str) -> Any:
    name = word.partition("=")[0]
    return next(
        (one for one in command.params if name in (*one.opts, *one.secondary_opts) and name.startswith("-")), None
    )


def _resolved(command: Any) -> Any:
    return _resolved(command.target()) if hasattr(command, "target") else command


def _context(command: Any, path: str) -> Any:
    return command.context_class(command, info_name=path)
