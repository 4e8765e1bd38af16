"""Print what completes commands and options in a shell: eval "$(ampcheck completion bash)"."""

import argparse
import re
from collections.abc import Mapping

_BASH = """\
_ampcheck() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options
    case "${{COMP_WORDS[1]}}" in
{cases}
        *) options="{default}" ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word") $(compgen -f -- "$word"))
    elif [[ "$word" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _ampcheck ampcheck
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of the shell, and keep what knows all commands."""
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(options: argparse.Namespace) -> int:
    """Print the script of a shell."""
    known = {name: option_names(parser) for name, parser in options.commands.items()}
    print(
        fish(known) if options.shell == "fish" else (_ZSH if options.shell == "zsh" else "") + bash(known),
        end="",
    )
    return 0


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command, as its help lists them."""
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", parser.format_help())))


def bash(known: Mapping[str, list[str]]) -> str:
    """Return a script for bash."""
    cases = "\n".join(f'        {name}) options="{" ".join(names)}" ;;' for name, names in known.items())
    return _BASH.format(cases=cases, default=" ".join(known["check"]), commands=" ".join(known))


def fish(known: Mapping[str, list[str]]) -> str:
    """Return a script for fish."""
    lines = [f"complete -c ampcheck -n __fish_use_subcommand -a '{' '.join(known)}'"]
    for name, names in known.items():
        lines += [
            f"complete -c ampcheck -n '__fish_seen_subcommand_from {name}' -l {long[2:]}" for long in names
        ]
    return "\n".join(lines) + "\n"
