# terrace_add_module(NAME [DEPENDS modules...] [LIBRARIES private libraries...])
# Makes the library terrace_NAME of the sources in the current folder and below. Each module gets an include root of its own that
# holds only <terrace/NAME/...>, so a module sees the headers of the modules it names in DEPENDS and no others.
function(terrace_add_module name)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS *.h)
  set(include_root "${PROJECT_BINARY_DIR}/include/${name}")
  file(MAKE_DIRECTORY "${include_root}/terrace")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${include_root}/terrace/${name}" SYMBOLIC)

  add_library(terrace_${name} STATIC ${sources} ${headers})
  add_library(terrace::${name} ALIAS terrace_${name})
  set_target_properties(terrace_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_include_directories(terrace_${name} PUBLIC
    "$<BUILD_INTERFACE:${include_root}>" "$<INSTALL_INTERFACE:include>")
  target_compile_features(terrace_${name} PUBLIC cxx_std_20)
  foreach(dependency IN LISTS arg_DEPENDS)
    target_link_libraries(terrace_${name} PUBLIC terrace_${dependency})
  endforeach()
  target_link_libraries(terrace_${name} PRIVATE $<BUILD_INTERFACE:terrace_compile> ${arg_LIBRARIES})
endfunction()
