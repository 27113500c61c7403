# Finds nvcc where TERRACE_CUDA asks for CUDA, and says so in TERRACE_HAS_CUDA. Compiling needs no GPU and no driver.
#
# nvcc is called directly instead of through CMake's CUDA language, which takes over the language level, extensions
# and flags of C++ and, in the releases this project supports, does not know nvcc's C++20.
set(TERRACE_HAS_CUDA FALSE)
if(NOT TERRACE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TERRACE_CUDA is '${TERRACE_CUDA}'; it must be AUTO, ON or OFF")
endif()
if(NOT TERRACE_CUDA STREQUAL "OFF" AND NOT TERRACE_SANITIZER)
  find_program(TERRACE_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(TERRACE_NVCC)
  if(TERRACE_NVCC)
    set(TERRACE_HAS_CUDA TRUE)
  elseif(TERRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TERRACE_CUDA is ON, but nvcc is neither on the PATH nor in /usr/local/cuda/bin")
  endif()
endif()
set(TERRACE_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures to compile CUDA programs for")

# terrace_add_cuda_program(NAME SOURCE): the program cuda/NAME in the current binary folder. The numeric options are those
# that the optimizer's arithmetic needs.
function(terrace_add_cuda_program name source)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/cuda")  # a target and its file cannot share a name
  file(MAKE_DIRECTORY "${folder}")
  set(program "${folder}/${name}")
  set(options -std=c++20 -O2 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -cudart static -Xcompiler=-Wall,-Wextra)
  if(TERRACE_WARNINGS_AS_ERRORS)
    list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  foreach(architecture IN LISTS TERRACE_CUDA_ARCHITECTURES)
    list(APPEND options "-gencode=arch=compute_${architecture},code=[compute_${architecture},sm_${architecture}]")
  endforeach()
  add_custom_command(OUTPUT "${program}"
    COMMAND "${TERRACE_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" ${options} -MD -MF "${program}.d"
      -o "${program}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -Xcompiler=-pthread -ldl
    DEPENDS "${source}" DEPFILE "${program}.d" COMMENT "Building the CUDA program ${name}" VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${program}")
endfunction()
