# Third-party libraries. A portable build (QRUN_PORTABLE) needs none of their packages where it runs: an archive is
# linked in where there is one beside the shared library; else the shared library is copied into the build folder, where
# what is built finds it by a path relative to itself.

set(QRUN_CARRIED_FOLDER ${PROJECT_BINARY_DIR}/lib)

# The name under which programs ask for a shared library.
function(qrun_soname LIBRARY RESULT)
  execute_process(COMMAND ${CMAKE_READELF} -d ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  if(NOT dynamic MATCHES "SONAME[^\n]*\\[([^]\n]+)\\]")
    message(FATAL_ERROR "${LIBRARY} has no SONAME; a portable build cannot carry it")
  endif()
  set(${RESULT} ${CMAKE_MATCH_1} PARENT_SCOPE)
endfunction()

# What PkgConfig::PREFIX links to, portably. Adds to QRUN_CARRIED (copied libraries) and QRUN_ARCHIVES (names of those
# linked in, none of whose symbols a shared library may export) in the caller's scope.
function(qrun_carry PREFIX)
  set(link)
  foreach(library ${${PREFIX}_LINK_LIBRARIES})
    string(REGEX REPLACE "\\.so$" ".a" archive ${library})
    if(NOT library MATCHES "\\.so$" OR library MATCHES "/lib(c|m|dl|rt|pthread)\\.so$")
      list(APPEND link ${library})
    elseif(EXISTS ${archive})
      list(APPEND link ${archive})
      get_filename_component(name ${archive} NAME)
      list(APPEND QRUN_ARCHIVES ${name})
    else()
      qrun_soname(${library} soname)
      configure_file(${library} ${QRUN_CARRIED_FOLDER}/${soname} COPYONLY)
      add_library(carried_${soname} SHARED IMPORTED)
      set_target_properties(carried_${soname} PROPERTIES IMPORTED_LOCATION ${QRUN_CARRIED_FOLDER}/${soname}
                                                         IMPORTED_SONAME ${soname})
      list(APPEND link carried_${soname})
      list(APPEND QRUN_CARRIED ${QRUN_CARRIED_FOLDER}/${soname})
    endif()
  endforeach()
  set_target_properties(PkgConfig::${PREFIX} PROPERTIES INTERFACE_LINK_LIBRARIES "${link}")
  set(QRUN_CARRIED ${QRUN_CARRIED} PARENT_SCOPE)
  set(QRUN_ARCHIVES ${QRUN_ARCHIVES} PARENT_SCOPE)
endfunction()

# The target portable_run: BUILD-run beside the build folder, with what tests/gpu.sh runs and nothing else, stripped; it
# may be moved. To be called where every target is known.
function(qrun_portable_run)
  set(component COMPONENT portable_run EXCLUDE_FROM_ALL)
  set(gpu ${PROJECT_SOURCE_DIR}/tests/gpu.sh)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${gpu})
  file(STRINGS ${gpu} lines REGEX "\\$tests/")
  string(REGEX MATCHALL "\\$tests/[a-z]+/test_[a-z_]+" programs "${lines}")
  list(REMOVE_DUPLICATES programs)
  set(tests)
  foreach(program ${programs})
    string(REGEX REPLACE "^.tests/([a-z]+)/" "tests/\\1;" parts ${program})
    list(GET parts 0 folder)
    list(GET parts 1 test)
    set_target_properties(${test} PROPERTIES INSTALL_RPATH $ORIGIN/../../${CMAKE_INSTALL_LIBDIR}
                                             BUILD_WITH_INSTALL_RPATH ON)
    install(TARGETS ${test} RUNTIME DESTINATION ${folder} ${component})
    list(APPEND tests ${test})
  endforeach()
  if(NOT tests)
    message(FATAL_ERROR "${gpu} names no program in a form that is recognised here")
  endif()
  install(TARGETS qrun RUNTIME DESTINATION cli ${component})
  install(TARGETS qrun_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component} NAMELINK_SKIP)
  install(TARGETS qrun_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component})
  install(FILES ${QRUN_CARRIED} DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component})
  add_custom_target(portable_run
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${PROJECT_BINARY_DIR}-run
    COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --component portable_run --strip
            --prefix ${PROJECT_BINARY_DIR}-run
    DEPENDS qrun qrun_shared qrun_cuda ${tests}
    VERBATIM)
endfunction()
