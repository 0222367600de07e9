/* The page at "/": page.html as bytes, which CMake makes. */
#ifndef QRUN_SERVE_PAGE_H
#define QRUN_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char page_bytes[];
extern const size_t page_n_bytes;

#endif
