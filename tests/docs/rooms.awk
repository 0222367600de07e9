# The rooms as CMake declares them, one a line: "FOLDER sees FOLDER..."
#   awk -f tests/docs/rooms.awk loaders/CMakeLists.txt kernels/CMakeLists.txt runtime/CMakeLists.txt cli/CMakeLists.txt
{
    sub(/#.*/, "")
    text = text " " $0
}
END {
    gsub(/[()]/, " & ", text)
    n = split(text, words, " ")
    for (i = 1; i <= n; i++) {
        if (words[i] != "qrun_room") { continue }
        room = words[i + 3]
        line = room
        seeing = 0
        for (i += 4; words[i] != ")"; i++) {
            if (words[i] ~ /^(SOURCES|INSIDE)$/) { seeing = 0 }
            else if (words[i] == "SEES") { seeing = 1; line = line " sees" }
            else if (seeing) { line = line " " words[i] }
        }
        print line
    }
}
