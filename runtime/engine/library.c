/* libqrun.so is linked from archives; CMake asks for a source file of its own. */
#include "qrun.h"

typedef int qr_library_has_no_code_of_its_own;
