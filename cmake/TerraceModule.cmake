# terrace_add_module(NAME [DEPENDS modules...] [LIBRARIES private libraries...] [HEADER_ONLY private libraries...])
# Makes the library terrace_NAME of the sources in the current folder and below. Each module gets an include root of
# its own that holds only <terrace/NAME/...>, so a module sees the headers of the modules it names in DEPENDS and no
# others. HEADER_ONLY libraries are needed to build the module and never to link it.
#
# A header is public, so installed and held to the rules for public headers, unless it lies in a folder internal/ or
# its name ends in -inl.h.
function(terrace_add_module name)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBRARIES;HEADER_ONLY" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS *.h)
  set(include_root "${PROJECT_BINARY_DIR}/include/${name}")
  file(MAKE_DIRECTORY "${include_root}/terrace")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${include_root}/terrace/${name}" SYMBOLIC)

  add_library(terrace_${name} ${sources} ${headers})
  add_library(terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES
    EXPORT_NAME ${name} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(terrace_${name} PUBLIC
    "$<BUILD_INTERFACE:${include_root}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(terrace_${name} PUBLIC cxx_std_20)
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(terrace_${name} PUBLIC terrace_${dependency})
  endforeach()
  foreach(library IN LISTS arg_HEADER_ONLY ITEMS terrace_compile)
    target_link_libraries(terrace_${name} PRIVATE "$<BUILD_INTERFACE:${library}>")
  endforeach()
  target_link_libraries(terrace_${name} PRIVATE ${arg_LIBRARIES})

  set(public_headers "")
  foreach(header IN LISTS headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE relative)
    if(NOT relative MATCHES "(^|/)internal/|-inl\\.h$")
      list(APPEND public_headers "terrace/${name}/${relative}")
      cmake_path(GET relative PARENT_PATH folder)
      install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/terrace/${name}/${folder}")
    endif()
  endforeach()
  if(TERRACE_PRECOMPILE_HEADERS STREQUAL "ON")
    set(known "")
    foreach(header IN LISTS public_headers)
      list(APPEND known "<${header}>")
    endforeach()
    target_precompile_headers(terrace_${name} PRIVATE ${known} <fmt/format.h>)
  endif()
  set_property(TARGET terrace_${name} PROPERTY TERRACE_PUBLIC_HEADERS "${public_headers}")
  set_property(GLOBAL APPEND PROPERTY TERRACE_MODULES "${name}")
  install(TARGETS terrace_${name} EXPORT terraceTargets)
endfunction()
