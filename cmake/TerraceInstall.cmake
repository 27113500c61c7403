# The installed package: find_package(terrace) with its components, `pkg-config terrace-offload` and `pkg-config terrace-c`.
# The modules install themselves.
include(CMakePackageConfigHelpers)
set(TERRACE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/terrace")

# A tree of which only a part is built, such as that of tools/quickstart, is refused before anything is copied. What would
# be copied has to be there.
get_property(modules GLOBAL PROPERTY TERRACE_MODULES)
set(installed_files "")
foreach(module IN LISTS modules)
  list(APPEND installed_files "$<TARGET_FILE:terrace_${module}>")
endforeach()
foreach(target IN ITEMS terrace_c terrace_mpi terrace)
  if(TARGET ${target})
    list(APPEND installed_files "$<TARGET_FILE:${target}>")
  endif()
endforeach()
set(TERRACE_INSTALLED_FILES "${installed_files}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/require_complete.cmake.in" "${PROJECT_BINARY_DIR}/package/require_complete.cmake.in"
  @ONLY)
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/package/require_complete_$<CONFIG>.cmake"
  INPUT "${PROJECT_BINARY_DIR}/package/require_complete.cmake.in")

if(TARGET terrace)
  set_target_properties(terrace PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  # A search path that CMake changes when it installs ends with an empty entry until then, which stands for whatever folder
  # the program is started in.
  if(NOT BUILD_SHARED_LIBS)
    set_target_properties(terrace PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endif()
  install(TARGETS terrace)
endif()
install(EXPORT terraceOffloadTargets NAMESPACE terrace:: DESTINATION "${TERRACE_PACKAGE_DIR}")
if(TERRACE_BUILD_C)
  install(EXPORT terraceCTargets NAMESPACE terrace:: DESTINATION "${TERRACE_PACKAGE_DIR}")
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/terraceConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/terraceConfig.cmake" INSTALL_DESTINATION "${TERRACE_PACKAGE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/terraceConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/package/terraceConfig.cmake"
  "${PROJECT_BINARY_DIR}/package/terraceConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TerraceDependencies.cmake"
  DESTINATION "${TERRACE_PACKAGE_DIR}")

# terrace-offload.pc. A program that links archives names what they need; shared libraries know that themselves, and so
# PACKAGES and SYSTEM_LIBRARIES are private to them.
function(terrace_install_offload_pc libraries system_libraries packages)
  set(name terrace-offload)
  set(TERRACE_PC_NAME "${name}")
  set(TERRACE_PC_OPTIONS "-std=c++20")
  if(BUILD_SHARED_LIBS)
    set(TERRACE_PC_LIBRARIES "${libraries}")
    set(TERRACE_PC_REQUIRES
      "Requires.private: ${packages}\nLibs.private: ${system_libraries}")
  else()
    set(TERRACE_PC_LIBRARIES "${libraries} ${system_libraries}")
    set(TERRACE_PC_REQUIRES "Requires: ${packages}")
  endif()
  terrace_write_pc()
endfunction()

# Writes ${name}.pc of the variables TERRACE_PC_*.
macro(terrace_write_pc)
  # The prefix follows from where the file lies, so an installed tree can be moved.
  file(RELATIVE_PATH TERRACE_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/terrace.pc.in" "${PROJECT_BINARY_DIR}/package/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/package/${name}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endmacro()

# The library for C has all that it needs within it, or asks the loader for it.
function(terrace_install_c_pc)
  set(name terrace-c)
  set(TERRACE_PC_NAME "${name}")
  set(TERRACE_PC_OPTIONS "")
  set(TERRACE_PC_REQUIRES "")
  set(TERRACE_PC_LIBRARIES "-lterrace -lm")
  terrace_write_pc()
endfunction()
if(TERRACE_BUILD_C)
  terrace_install_c_pc()
endif()

# Upper modules first: the order in which a linker needs archives.
terrace_install_offload_pc(
  "-lterrace_offload -lterrace_optimizer_cpu -lterrace_sim -lterrace_comm -lterrace_memory -lterrace_aio -lterrace_base"
  "-laio -pthread" "fmt, tbb, liburing, libhwy, libxxhash, libcrypto")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
