# What the libraries link against. Read by the build and, from an installed copy, by terraceConfig.cmake: both find
# the same libraries under the same target names, so an exported link line needs nothing but this file. It must not
# set a compile option or look for what only the build needs (Eigen, CLI11, the test libraries).
#
# Leaves the names of what is missing in TERRACE_MISSING_DEPENDENCIES.
set(TERRACE_MISSING_DEPENDENCIES "")
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)  # a project that holds Terrace as a subfolder links them as well

foreach(package IN ITEMS Threads TBB fmt)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND TERRACE_MISSING_DEPENDENCIES ${package})
  endif()
endforeach()
unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)

# terrace_find_external(MISSING NAME HEADER LIBRARY): the target terrace::external_NAME for a C or C++ library
# whose own package files differ from one distribution to the next, or its name in the list MISSING.
macro(terrace_find_external missing name header library)
  find_path(TERRACE_${name}_INCLUDE_DIR "${header}")
  find_library(TERRACE_${name}_LIBRARY "${library}")
  mark_as_advanced(TERRACE_${name}_INCLUDE_DIR TERRACE_${name}_LIBRARY)
  if(NOT TERRACE_${name}_INCLUDE_DIR OR NOT TERRACE_${name}_LIBRARY)
    list(APPEND ${missing} "${library} (${header})")
  elseif(NOT TARGET terrace::external_${name})
    add_library(terrace::external_${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(terrace::external_${name} PROPERTIES
      IMPORTED_LOCATION "${TERRACE_${name}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${TERRACE_${name}_INCLUDE_DIR}")
  endif()
endmacro()

terrace_find_external(TERRACE_MISSING_DEPENDENCIES aio libaio.h aio)
terrace_find_external(TERRACE_MISSING_DEPENDENCIES crypto openssl/evp.h crypto)
terrace_find_external(TERRACE_MISSING_DEPENDENCIES hwy hwy/highway.h hwy)
terrace_find_external(TERRACE_MISSING_DEPENDENCIES uring liburing.h uring)
terrace_find_external(TERRACE_MISSING_DEPENDENCIES xxhash xxhash.h xxhash)
