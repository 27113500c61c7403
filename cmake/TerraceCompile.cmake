# Compile options shared by every target. The numeric ones are part of the promise that placement never changes
# numbers: no contraction into FMA, no reassociation, no host-specific instruction set by default.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")  # the build type of the asan and tsan presets

find_program(TERRACE_CCACHE ccache)
if(TERRACE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TERRACE_CCACHE}")
endif()

add_library(terrace_compile INTERFACE)
target_compile_options(terrace_compile INTERFACE
  -ffp-contract=off -fno-fast-math
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual)
if(TERRACE_WARNINGS_AS_ERRORS)
  target_compile_options(terrace_compile INTERFACE -Werror)
endif()
# As GCC tells a source which sanitizer it is compiled for.
set(sanitizer_definitions "$<$<CXX_COMPILER_ID:Clang>:__SANITIZE_$<UPPER_CASE:${TERRACE_SANITIZER}>__>")
if(TERRACE_SANITIZER STREQUAL "address")
  target_compile_definitions(terrace_compile INTERFACE "${sanitizer_definitions}")
  # The test programs' own sources are neither optimised nor checked for undefined behaviour: there it would find
  # nothing in the library, and both together triple the time that the sources take to compile. The use of a null
  # pointer ends the test, and accesses outside an object are found by the other sanitizer: their checks, and those of the dynamic type, which are
  # at every access to a member, would be a third of the time that the library takes.
  target_compile_options(terrace_compile INTERFACE -fsanitize=address -fno-omit-frame-pointer
    $<$<BOOL:$<TARGET_PROPERTY:TERRACE_TEST_PROGRAM>>:-O0>
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TERRACE_TEST_PROGRAM>>>:-fsanitize=undefined>
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TERRACE_TEST_PROGRAM>>>:-fno-sanitize=null,object-size,vptr>
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TERRACE_TEST_PROGRAM>>>:-fno-sanitize-recover=undefined>)
  target_link_options(terrace_compile INTERFACE -fsanitize=address,undefined)
elseif(TERRACE_SANITIZER STREQUAL "thread")
  target_compile_definitions(terrace_compile INTERFACE "${sanitizer_definitions}")
  target_compile_options(terrace_compile INTERFACE -fsanitize=thread -fno-omit-frame-pointer
    $<$<BOOL:$<TARGET_PROPERTY:TERRACE_TEST_PROGRAM>>:-O0>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  # Clang's runtime has an operator new of its own, as the tests have, and comes first.
  target_link_options(terrace_compile INTERFACE -fsanitize=thread
    $<$<CXX_COMPILER_ID:Clang>:LINKER:--allow-multiple-definition>)
elseif(TERRACE_SANITIZER)
  message(FATAL_ERROR "TERRACE_SANITIZER is '${TERRACE_SANITIZER}'; it must be empty, address or thread")
endif()
