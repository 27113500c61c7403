# What of CUDA is built. There are two parts, and neither needs a GPU, a driver or a CUDA library to build.
#
# The back end of the device tier (memory/cuda_*) needs cuda.h alone, in TERRACE_CUDA_INCLUDE: it loads the driver at run
# time. TERRACE_HAS_CUDA_DRIVER says whether it is built.
set(TERRACE_HAS_CUDA_DRIVER FALSE)
if(NOT TERRACE_CUDA STREQUAL "OFF")
  find_path(TERRACE_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include)
  mark_as_advanced(TERRACE_CUDA_INCLUDE)
  if(TERRACE_CUDA_INCLUDE)
    set(TERRACE_HAS_CUDA_DRIVER TRUE)
  elseif(TERRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TERRACE_CUDA is ON, but cuda.h is not in /usr/local/cuda/include; set TERRACE_CUDA_INCLUDE")
  endif()
endif()

# CUDA programs need nvcc.
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

# What the optimizer's arithmetic and the kernels' promise of the host's bits need. The relaxed constexpr lets kernels use
# the conversions of base/data_type.h.
set(TERRACE_CUDA_NUMERICS -std=c++20 -O2 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false --expt-relaxed-constexpr)
# What shows a source the headers of every module.
set(TERRACE_CUDA_INCLUDES "")
foreach(module IN ITEMS base aio memory sim optimizer_cpu offload runtime_saved runtime_config runtime_checkpoint
    runtime_planning runtime_observe runtime_budget runtime_ranks reference)
  list(APPEND TERRACE_CUDA_INCLUDES "-I${PROJECT_BINARY_DIR}/include/${module}")
endforeach()

# The options of every compilation.
function(terrace_cuda_options result)
  set(options ${TERRACE_CUDA_NUMERICS} -cudart static -Xcompiler=-Wall,-Wextra)
  if(TERRACE_WARNINGS_AS_ERRORS)
    list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  foreach(architecture IN LISTS TERRACE_CUDA_ARCHITECTURES)
    list(APPEND options "-gencode=arch=compute_${architecture},code=[compute_${architecture},sm_${architecture}]")
  endforeach()
  set(${result} "${options}" PARENT_SCOPE)
endfunction()

# terrace_add_cuda_program(NAME SOURCE): the program cuda/NAME in the current binary folder.
function(terrace_add_cuda_program name source)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/cuda")  # a target and its file cannot share a name
  file(MAKE_DIRECTORY "${folder}")
  set(program "${folder}/${name}")
  terrace_cuda_options(options)
  add_custom_command(OUTPUT "${program}"
    COMMAND "${TERRACE_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" ${options} -MD -MF "${program}.d"
      -o "${program}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -Xcompiler=-pthread -ldl
    DEPENDS "${source}" DEPFILE "${program}.d" COMMENT "Building the CUDA program ${name}" VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${program}")
endfunction()

# terrace_add_cuda_object(NAME SOURCE FOLDERS...): the object cuda/NAME.o, made by the target NAME, of a source that sees
# the headers of every module and of the FOLDERS. Its path is the target's property TERRACE_OBJECT. A program that links
# it needs ${TERRACE_CUDA_RUNTIME} as well.
function(terrace_add_cuda_object name source)
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/cuda")
  file(MAKE_DIRECTORY "${folder}")
  set(object "${folder}/${name}.o")
  terrace_cuda_options(options)
  list(APPEND options ${TERRACE_CUDA_INCLUDES})
  foreach(include IN LISTS ARGN)
    list(APPEND options "-I${include}")
  endforeach()
  add_custom_command(OUTPUT "${object}"
    COMMAND "${TERRACE_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" ${options} -Xcompiler=-fPIC,-ffp-contract=off
      -MD -MF "${object}.d" -c -o "${object}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
    DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "Compiling ${source} with nvcc" VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${object}")
  set_target_properties(${name} PROPERTIES TERRACE_OBJECT "${object}")
endfunction()

if(TERRACE_HAS_CUDA)
  find_library(TERRACE_CUDA_RUNTIME libcudart_static.a
    PATHS /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib)
  mark_as_advanced(TERRACE_CUDA_RUNTIME)
endif()
