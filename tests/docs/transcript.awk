# A page whose ```shell-session blocks show commands and what they print: lines of "$ " are commands (a backslash at the
# end goes on), the lines below one are what it prints, errors included.
#   awk -v mode=commands -f transcript.awk PAGE                  a shell script; a mark line begins what a command prints
#   awk -v mode=page -v printed=FILE -f transcript.awk PAGE      the page with what that script printed
#   awk -v mode=compare -v other=PAGE2 -f transcript.awk PAGE    the lines that differ, and status 1
BEGIN {
    mark = "==== transcript "
    while (mode == "page" && (getline line <printed) > 0) {
        if (index(line, mark) == 1) { n_printed++ }
        else { outputs[n_printed, ++n_lines[n_printed]] = line }
    }
}

mode == "compare" {
    if ((getline line <other) <= 0 || !same($0, line)) {
        printf "line %d, the page shows:\n    %s\nthe program prints:\n    %s\n", NR, $0, line
        exit failed = 1
    }
    next
}

/^```shell-session$/ { inside = 1 }
/^```$/ { inside = 0 }
!inside || /^```/ { if (mode == "page") { print } next }
/^\$ / || goes_on {
    if (mode == "commands") {
        if (!goes_on) { printf "echo; echo '%s'\n", mark }
        print goes_on ? $0 : substr($0, 3)
    } else {
        print
    }
    n_commands += !goes_on
    goes_on = /\\$/
    if (mode == "page" && !goes_on) { print_output() }
}

END {
    if (mode == "compare" && !failed && (getline line <other) > 0) { print "the program prints more: " line; exit 1 }
    exit failed
}

# Without the line's end that the script adds, and empty lines before it.
function print_output(   n, i) {
    n = n_lines[n_commands]
    while (n > 0 && outputs[n_commands, n] == "") { n-- }
    for (i = 1; i <= n; i++) { print outputs[n_commands, i] }
}

# Word for word. Numbers before a unit of size, time or speed depend on the machine; other fractions, such as losses,
# on its instruction set: 5 % or 0.005.
function same(a, b,   x, y, n, i, difference) {
    n = split(a, x, /[ \t]+/)
    if (split(b, y, /[ \t]+/) != n) { return 0 }
    for (i = 1; i <= n; i++) {
        if (x[i] ~ /[,:;)]$/ && sub(/[,:;)]$/, "", x[i]) != sub(/[,:;)]$/, "", y[i])) { return 0 }
        if (x[i] == y[i] || (is_unit(x[i]) && is_unit(y[i]))) { continue }
        if (!is_number(x[i]) || !is_number(y[i])) { return 0 }
        if (is_unit(x[i + 1]) && is_unit(y[i + 1])) { continue }
        difference = x[i] > y[i] ? x[i] - y[i] : y[i] - x[i]
        if (x[i] !~ /\./ || difference > 0.005 + 0.05 * x[i]) { return 0 }
    }
    return 1
}
function is_number(word) { return word ~ /^[0-9]+(\.[0-9]+)?$/ }
function is_unit(word) { return word ~ /^([KMG]i?B|B|m?s|tokens\/s)[,:;.)]?$/ }
