/* libqrun.so is linked from the parts; this gives it a source of its own. */
#include "qrun.h"

typedef int qr_library_has_no_code_of_its_own;
