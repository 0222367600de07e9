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
# Hardening as Debian builds its packages. Sanitizers bring checks of their own.
if(NOT QRUN_SANITIZE AND NOT QRUN_FUZZ)
  target_compile_options(qrun_flags INTERFACE -fstack-protector-strong)
  target_compile_definitions(qrun_flags INTERFACE $<$<NOT:$<CONFIG:Debug>>:_FORTIFY_SOURCE=2>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(qrun_flags INTERFACE -fcf-protection)
  endif()
endif()
# GCC 12 for 64-bit Arm stops with an internal error (vect_transform_reduction) at loops of fmax over converted elements.
# The cost model of -O2 leaves them alone; kernels are vectors already.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64" AND CMAKE_C_COMPILER_ID STREQUAL "GNU"
   AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(qrun_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fvect-cost-model=very-cheap>)
endif()
target_link_options(qrun_flags INTERFACE -Wl,-z,relro -Wl,-z,now)
if(QRUN_SANITIZE)
  # At -O2 with all of -g, kernels take GCC 12 three to four times as long (linear_f32.c for AVX-512: over 154 s for 43).
  target_compile_options(qrun_flags INTERFACE -fsanitize=${QRUN_SANITIZE} -fno-omit-frame-pointer -O1 -g1
                                              -fno-sanitize-recover=all)
  # What may be uninitialised depends on what was inlined; other builds have that warning.
  target_compile_options(qrun_flags INTERFACE $<$<COMPILE_LANG_AND_ID:C,GNU>:-Wno-maybe-uninitialized>
                                              $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(qrun_flags INTERFACE -fsanitize=${QRUN_SANITIZE})
endif()
if(QRUN_FUZZ)
  target_compile_options(qrun_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# A part of qrun is one library; a room is a folder of it with one job. The compiler holds the drawing in
# docs/architecture.md: a source of a room finds the headers of its own room, of the rooms that it SEES, and of what
# those see; any other #include is an error.
function(qrun_part NAME)
  cmake_parse_arguments(PART "" "" "LINK;LINK_PRIVATE" ${ARGN})
  add_library(${NAME} STATIC)
  target_link_libraries(${NAME} PUBLIC ${PART_LINK} PRIVATE qrun_flags ${PART_LINK_PRIVATE})
  add_library(${NAME}_inside INTERFACE)
endfunction()

# A folder with links to a room's headers and to nothing else, on the include path of whoever may see them.
function(qrun_room_view FOLDER RESULT)
  string(REPLACE "/" "_" name ${FOLDER})
  set(view ${PROJECT_BINARY_DIR}/rooms/${name})
  set(${RESULT} ${view} PARENT_SCOPE)
  get_property(known GLOBAL PROPERTY QRUN_ROOM_${FOLDER})
  if(known)
    return()
  endif()
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${FOLDER}/*.h ${PROJECT_SOURCE_DIR}/${FOLDER}/*.cuh)
  file(REMOVE_RECURSE ${view})
  file(MAKE_DIRECTORY ${view}/${FOLDER})
  foreach(header ${headers})
    get_filename_component(header_name ${header} NAME)
    file(CREATE_LINK ${header} ${view}/${FOLDER}/${header_name} SYMBOLIC)
  endforeach()
endfunction()

# qrun_room(PART FOLDER [INSIDE] [SEES FOLDER…] [SOURCES FILE…]): FOLDER is relative to the project, the sources to
# FOLDER. INSIDE: other parts do not see the room; tests do, through PART_inside.
function(qrun_room PART FOLDER)
  cmake_parse_arguments(ROOM "INSIDE" "" "SEES;SOURCES" ${ARGN})
  qrun_room_view(${FOLDER} view)
  set(views ${view})
  foreach(seen ${ROOM_SEES})
    get_property(below GLOBAL PROPERTY QRUN_ROOM_${seen})
    if(NOT below)
      message(FATAL_ERROR "${FOLDER} sees ${seen}, which is no room declared before it")
    endif()
    list(APPEND views ${below})
  endforeach()
  list(REMOVE_DUPLICATES views)
  set_property(GLOBAL PROPERTY QRUN_ROOM_${FOLDER} ${views})
  if(ROOM_INSIDE)
    target_include_directories(${PART}_inside INTERFACE ${view})
  else()
    target_include_directories(${PART} INTERFACE ${view})
  endif()
  if(ROOM_SOURCES)
    qrun_room_sources(${FOLDER} sources ${ROOM_SOURCES})
    target_sources(${PART} PRIVATE ${sources})
  endif()
endfunction()

# Where a source of a room finds headers.
function(qrun_room_views FOLDER RESULT)
  get_property(views GLOBAL PROPERTY QRUN_ROOM_${FOLDER})
  set(${RESULT} ${views} PARENT_SCOPE)
endfunction()

# The paths of sources of a room, each told what it may include; for targets of the calling folder.
function(qrun_room_sources FOLDER RESULT)
  qrun_room_views(${FOLDER} views)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/${FOLDER}/ OUTPUT_VARIABLE sources)
  set_source_files_properties(${sources} PROPERTIES INCLUDE_DIRECTORIES "${views}")
  set(${RESULT} ${sources} PARENT_SCOPE)
endfunction()

# Where tests find their fixtures. They run in the source folder, which lies elsewhere on the machine that a portable
# build is for.
set(QRUN_TEST_SOURCE_DIR ${PROJECT_SOURCE_DIR})
if(QRUN_PORTABLE)
  set(QRUN_TEST_SOURCE_DIR .)
endif()

# One test program, run by ctest; exit code 77 is a skip. Sees every internal header of the parts it links. COST:
# seconds that it takes, where it is one of the longest; ctest begins with those, so that no core waits for one at the
# end. CASES_EMULATED: qrun_test_emulated says what an emulator runs of it.
function(qrun_test NAME)
  cmake_parse_arguments(TEST "CASES_EMULATED" "TIMEOUT;COST" "SOURCES;LINK;ARGS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(QRUN_SANITIZE OR CMAKE_CROSSCOMPILING)
    math(EXPR TEST_TIMEOUT "${TEST_TIMEOUT} * 3") # they take four times as long, and few come near
  endif()
  add_executable(${NAME} ${TEST_SOURCES})
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests/include)
  target_compile_definitions(${NAME} PRIVATE QRUN_SOURCE_DIR="${QRUN_TEST_SOURCE_DIR}")
  target_link_libraries(${NAME} PRIVATE ${TEST_LINK} qr_base qrun_flags)
  if(TEST_CASES_EMULATED AND CMAKE_CROSSCOMPILING)
    return()
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} ${TEST_ARGS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${TEST_TIMEOUT})
  if(TEST_COST)
    set_tests_properties(${NAME} PROPERTIES COST ${TEST_COST})
  endif()
endfunction()

# qrun_test_emulated(PROGRAM COST CPU ISAS CASE…): these cases of a program, each a test of its own, so that the
# emulator has work for all cores to the end. CPU is what QEMU calls a CPU, ISAS the instruction sets to be tested,
# which it must have: names with commas.
function(qrun_test_emulated PROGRAM COST CPU ISAS)
  string(REPLACE "," "_" isas ${ISAS})
  foreach(case ${ARGN})
    string(REGEX REPLACE "^test_(op_)?" "" short ${case})
    set(name ${PROGRAM}_${isas}_${short})
    add_test(NAME ${name} COMMAND ${PROGRAM} ${case}$ WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 1200 COST ${COST}
      ENVIRONMENT "QEMU_CPU=${CPU};QRUN_TEST_ISAS=${ISAS};QRUN_TEST_TIMES=1")
  endforeach()
endfunction()

# The words that lines of FILE begin with BEFORE(word).
function(qrun_words FILE BEFORE RESULT)
  file(READ ${PROJECT_SOURCE_DIR}/${FILE} text)
  string(REGEX MATCHALL "\n *(${BEFORE})\\([a-z0-9_]+\\)" words "${text}")
  list(TRANSFORM words REPLACE "\n *(${BEFORE})\\(([a-z0-9_]+)\\)" "\\2")
  set(${RESULT} ${words} PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${FILE})
endfunction()
