# Turns CUDA on where TERRACE_CUDA asks for it, and says so in TERRACE_HAS_CUDA. Compiling needs nvcc and no GPU.
set(TERRACE_HAS_CUDA FALSE)
if(NOT TERRACE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TERRACE_CUDA is '${TERRACE_CUDA}'; it must be AUTO, ON or OFF")
endif()
if(NOT TERRACE_CUDA STREQUAL "OFF" AND NOT TERRACE_SANITIZER)
  find_program(TERRACE_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  mark_as_advanced(TERRACE_NVCC)
  if(TERRACE_NVCC)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER "${TERRACE_NVCC}")
    endif()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90)
    endif()
    enable_language(CUDA)
    set(TERRACE_HAS_CUDA TRUE)
  elseif(TERRACE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TERRACE_CUDA is ON, but nvcc is neither on the PATH nor in /usr/local/cuda/bin")
  endif()
endif()

# terrace_add_cuda_program(NAME sources...): the warning and numeric options of terrace_compile are for the host
# compiler and stay away from nvcc. The language level is passed as an option, because CMake and nvcc releases
# disagree about which levels exist.
function(terrace_add_cuda_program name)
  add_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;-Xcompiler=-Wall,-Wextra>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TERRACE_WARNINGS_AS_ERRORS}>>:-Werror=all-warnings;-Xcompiler=-Werror>")
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
