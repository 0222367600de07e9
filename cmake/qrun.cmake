# How the parts of qrun are built.

set(QRUN_WARNINGS -Wall -Wextra -Wshadow -Wconversion $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> -Wvla)
if(QRUN_WERROR)
  list(APPEND QRUN_WARNINGS -Werror)
endif()

# Flags for everything compiled here. Contraction into FMA is off so that scalar code gives the same bits at every
# optimisation level and on every compiler; kernels that want FMA say so by intrinsics.
add_library(qrun_flags INTERFACE)
target_compile_options(qrun_flags INTERFACE ${QRUN_WARNINGS} -ffp-contract=off)
target_compile_definitions(qrun_flags INTERFACE _POSIX_C_SOURCE=200809L _DEFAULT_SOURCE QRUN_BUILDING)
if(QRUN_SANITIZE)
  target_compile_options(qrun_flags INTERFACE -fsanitize=${QRUN_SANITIZE} -fno-omit-frame-pointer -g
                                              -fno-sanitize-recover=all)
  target_link_options(qrun_flags INTERFACE -fsanitize=${QRUN_SANITIZE})
endif()
if(QRUN_FUZZ)
  target_compile_options(qrun_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# A folder of its own for each part's headers, holding only a link to that part: `#include "quant/nf4.h"` compiles
# only in a target that links qr_quant, so the direction of the arrows is checked by the compiler.
function(qrun_part NAME FOLDER)
  cmake_parse_arguments(PART "" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  set(root ${PROJECT_BINARY_DIR}/parts/${FOLDER})
  file(MAKE_DIRECTORY ${root})
  if(NOT EXISTS ${root}/${FOLDER})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${FOLDER} ${root}/${FOLDER} SYMBOLIC)
  endif()
  add_library(${NAME} STATIC ${PART_SOURCES})
  target_include_directories(${NAME} PUBLIC ${root})
  target_link_libraries(${NAME} PUBLIC ${PART_LINK} PRIVATE qrun_flags ${PART_LINK_PRIVATE})
endfunction()

# Where tests find their fixtures. They run in the source folder, which lies elsewhere on the machine that a portable
# build is for.
set(QRUN_TEST_SOURCE_DIR ${PROJECT_SOURCE_DIR})
if(QRUN_PORTABLE)
  set(QRUN_TEST_SOURCE_DIR .)
endif()

# One test program, run by ctest; exit code 77 is a skip. Sees every internal header of the parts it links.
function(qrun_test NAME)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;LINK;ARGS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  add_executable(${NAME} ${TEST_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests/include)
  target_compile_definitions(${NAME} PRIVATE QRUN_SOURCE_DIR="${QRUN_TEST_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE ${TEST_LINK} qr_base qrun_flags)
  add_test(NAME ${NAME} COMMAND ${NAME} ${TEST_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${TEST_TIMEOUT})
endfunction()
