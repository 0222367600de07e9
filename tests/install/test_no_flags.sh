#!/bin/sh
# The library speaks of the fields of qrun.h, in backticks; options like --memory are the program's words. So no text
# and no comment of the library's folders names one. Usage: test_no_flags.sh SOURCE_FOLDER
set -eu
cd "${1:-.}"
in_text='"[^"]*--[a-z]'
in_comment='(/\*|//|^ \*).*[^-[:alnum:]]--[a-z]'
hits=$(grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' -e "$in_text" -e "$in_comment" \
    base quant loaders kernels runtime) || [ $? -eq 1 ]
[ -z "$hits" ] && exit 0
printf '%s\n' "$hits"
echo "these lines name options of the program; name the field of qrun.h instead, as \`memory_bytes\`" >&2
exit 1
