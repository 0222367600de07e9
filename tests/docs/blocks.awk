# Takes the fenced blocks of a Markdown page apart: awk -v out=DIR -f blocks.awk PAGE.md
#   ```sh       DIR/NNN.sh, run in the order of the page
#   ```c        DIR/NNN.c; the first line is a comment that begins with the name of the file: /* hello.c: ... */
#   ```python   DIR/NNN.python; those of a page are one program, which runs after all other blocks
#   ```console  DIR/NNN.console: cannot run here (a download, a GPU, minutes of building); only its options are checked
#   ```shell-session  commands with what they print: all of it is test_first_hour.sh's
#   ```text, ```json, ```jsonl  what is printed or read: not run
# Any other language, and a fence without one, is an error.
/^```/ && !inside {
    language = substr($0, 4)
    if (language !~ /^(sh|c|python|console|shell-session|text|json|jsonl)$/) {
        printf "%s:%d: a block of '%s': say sh, c, python, console, shell-session, text, json or jsonl\n", FILENAME, FNR, language
        exit failed = 1
    }
    file = sprintf("%s/%03d.%s", out, ++n_blocks, language)
    printf "" > file
    inside = 1
    next
}
/^```$/ { close(file); inside = 0; next }
inside && language != "shell-session" { print > file }
END {
    if (inside) { printf "%s: the last block has no end\n", FILENAME; failed = 1 }
    exit failed
}
