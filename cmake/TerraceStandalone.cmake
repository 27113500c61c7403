# What a wheel holds (tools/wheel): libterrace.so and the program once more, linked from the same objects, with all
# third parties within them. They need glibc and libgcc_s alone. TERRACE_PARTS is the folder that `tools/wheel --parts`
# makes: archives of what Debian has as shared libraries only. Results are in the folder standalone of the build.
function(terrace_link_standalone target result name)
  target_link_libraries(${target} PRIVATE terrace_standalone_parts)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME "${result}" PREFIX "" SUFFIX ""
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/standalone"
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/standalone")
  add_dependencies(${target} ${name})
endfunction()

# Archives only: shared libraries of the same names are passed over.
set(parts "")
foreach(part IN ITEMS hwy fmt tbb xxhash)
  list(APPEND parts "${TERRACE_PARTS}/lib/lib${part}.a")
endforeach()
foreach(part IN ITEMS crypto uring pcre2-8 utf8proc)
  find_library(TERRACE_STATIC_${part} "lib${part}.a" REQUIRED)
  mark_as_advanced(TERRACE_STATIC_${part})
  list(APPEND parts "${TERRACE_STATIC_${part}}")
endforeach()

# Files, not targets: a target would bring along the shared libraries that it links. Upper modules come first.
get_property(modules GLOBAL PROPERTY TERRACE_MODULES)
list(REVERSE modules)
set(archives "")
foreach(module IN LISTS modules)
  list(APPEND archives "$<TARGET_FILE:terrace_${module}>")
endforeach()
add_library(terrace_standalone_substitutes STATIC "${PROJECT_SOURCE_DIR}/cmake/standalone.cpp")
set_target_properties(terrace_standalone_substitutes PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(terrace_standalone_substitutes PRIVATE terrace_compile)
add_library(terrace_standalone_parts INTERFACE)
target_link_libraries(terrace_standalone_parts INTERFACE
  ${archives} ${parts} terrace_standalone_substitutes Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(terrace_standalone_parts INTERFACE -static-libstdc++ LINKER:--gc-sections LINKER:--exclude-libs,ALL)

get_target_property(soversion terrace_c SOVERSION)
add_library(terrace_standalone_c SHARED $<TARGET_OBJECTS:terrace_c>)
terrace_link_standalone(terrace_standalone_c "libterrace.so.${soversion}" terrace_c)
get_target_property(options terrace_c LINK_OPTIONS)
target_link_options(terrace_standalone_c PRIVATE ${options})

add_executable(terrace_standalone $<TARGET_OBJECTS:terrace_program> $<TARGET_OBJECTS:terrace>)
terrace_link_standalone(terrace_standalone terrace terrace)
if(TARGET terrace_cuda_kernels AND TERRACE_CUDA_RUNTIME)
  get_target_property(kernels terrace_cuda_kernels TERRACE_OBJECT)
  set_source_files_properties("${kernels}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(terrace_standalone PRIVATE "${kernels}")
  target_link_libraries(terrace_standalone PRIVATE "${TERRACE_CUDA_RUNTIME}")
endif()
