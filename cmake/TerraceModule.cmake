# GCC 12 takes short strings for overrun where their headers were precompiled.
set(TERRACE_PRECOMPILED_WARNINGS
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overread>)

set(TERRACE_UNITY_BATCH 16)  # sources that are compiled together

# terrace_add_module(NAME [APART] [PUBLIC headers...] [TREE headers...] [DEPENDS modules...]
#   [LIBRARIES private libraries...] [HEADER_ONLY private libraries...])
# Makes a library of the sources in the current folder and below: NAME is that folder as seen from the root of the tree,
# and the target is terrace_NAME with "_" for "/". Each module gets an include root of its own that holds only
# <terrace/NAME/...>, so a module sees the headers of the modules it names in DEPENDS and no others. HEADER_ONLY
# libraries are needed to build the module and never to link it. The sources of a module that is APART are always compiled
# one by one (TERRACE_UNITY_BUILD).
#
# PUBLIC and TREE name, without ".h", the headers that other modules may include. Those that are PUBLIC are for programs
# that embed Terrace as well: they are installed. tests/source_tree reads both lists. Sources cuda_*.cpp are built where
# TERRACE_HAS_CUDA_DRIVER, and elsewhere cuda_absent.cpp is in their place.
function(terrace_add_module name)
  cmake_parse_arguments(arg "APART" "" "PUBLIC;TREE;DEPENDS;LIBRARIES;HEADER_ONLY" ${ARGN})
  string(REPLACE "/" "_" target "${name}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS *.h)
  set(left_out ${sources})
  if(TERRACE_HAS_CUDA_DRIVER)
    list(FILTER left_out INCLUDE REGEX "/cuda_absent\\.cpp$")
  else()
    list(FILTER left_out INCLUDE REGEX "/cuda_[a-z_]+\\.cpp$")
    list(FILTER left_out EXCLUDE REGEX "/cuda_absent\\.cpp$")
  endif()
  if(left_out)
    list(REMOVE_ITEM sources ${left_out})
  endif()
  set(include_root "${PROJECT_BINARY_DIR}/include/${target}")
  cmake_path(GET name PARENT_PATH parent)
  file(MAKE_DIRECTORY "${include_root}/terrace/${parent}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${include_root}/terrace/${name}" SYMBOLIC)
  set_property(GLOBAL APPEND PROPERTY TERRACE_INCLUDE_ROOTS "${include_root}")

  add_library(terrace_${target} ${sources} ${headers})
  add_library(terrace::${target} ALIAS terrace_${target})
  set_target_properties(terrace_${target} PROPERTIES
    EXPORT_NAME ${target} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(terrace_${target} PUBLIC
    "$<BUILD_INTERFACE:${include_root}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_compile_features(terrace_${target} PUBLIC cxx_std_20)
  foreach(dependency IN LISTS arg_DEPENDS)
    string(REPLACE "/" "_" dependency "${dependency}")
    target_link_libraries(terrace_${target} PUBLIC terrace_${dependency})
  endforeach()
  foreach(library IN LISTS arg_HEADER_ONLY ITEMS terrace_compile)
    target_link_libraries(terrace_${target} PRIVATE "$<BUILD_INTERFACE:${library}>")
  endforeach()
  target_link_libraries(terrace_${target} PRIVATE ${arg_LIBRARIES})

  foreach(header IN LISTS arg_PUBLIC)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES "${header}.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/terrace/${name}/${folder}")
  endforeach()
  set(shown_headers "")
  foreach(header IN LISTS arg_PUBLIC arg_TREE)
    list(APPEND shown_headers "terrace/${name}/${header}.h")
  endforeach()
  if(TERRACE_UNITY_BUILD AND NOT arg_APART)
    set_target_properties(terrace_${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TERRACE_UNITY_BATCH})
    # GCC warns of members of a source's own types where that source is included by another one.
    target_compile_options(terrace_${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  # Two units read the headers sooner than these are precompiled.
  list(LENGTH sources source_count)
  math(EXPR in_two_units "2 * ${TERRACE_UNITY_BATCH}")
  if(TERRACE_PRECOMPILE_HEADERS AND NOT (TERRACE_UNITY_BUILD AND NOT arg_APART AND source_count LESS_EQUAL in_two_units))
    set(known "")
    foreach(header IN LISTS shown_headers)
      list(APPEND known "<${header}>")
    endforeach()
    target_precompile_headers(terrace_${target} PRIVATE ${known} <fmt/format.h>)
    target_compile_options(terrace_${target} PRIVATE ${TERRACE_PRECOMPILED_WARNINGS})
  endif()
  set_property(TARGET terrace_${target} PROPERTY TERRACE_SHOWN_HEADERS "${shown_headers}")
  set_property(GLOBAL APPEND PROPERTY TERRACE_MODULES "${target}")
  # The package has what a program that embeds the memory manager links. What is above it is there for the program alone.
  if(NOT name MATCHES "^(runtime|reference)")
    install(TARGETS terrace_${target} EXPORT terraceOffloadTargets)
  elseif(BUILD_SHARED_LIBS)
    install(TARGETS terrace_${target} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" NAMELINK_SKIP)
  endif()
endfunction()
