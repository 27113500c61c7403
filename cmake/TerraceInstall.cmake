# The installed package: find_package(terrace) and `pkg-config terrace`. The modules install themselves.
include(CMakePackageConfigHelpers)
set(TERRACE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/terrace")

if(TARGET terrace)
  set_target_properties(terrace PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS terrace)
endif()
install(EXPORT terraceTargets NAMESPACE terrace:: DESTINATION "${TERRACE_PACKAGE_DIR}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/terraceConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/package/terraceConfig.cmake" INSTALL_DESTINATION "${TERRACE_PACKAGE_DIR}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/terraceConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/package/terraceConfig.cmake"
  "${PROJECT_BINARY_DIR}/package/terraceConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/TerraceDependencies.cmake"
  DESTINATION "${TERRACE_PACKAGE_DIR}")

# Upper modules first: the order in which a linker needs archives.
set(TERRACE_PC_LIBRARIES "-lterrace_runtime_observe -lterrace_runtime_train -lterrace_runtime_model -lterrace_runtime_config -lterrace_offload -lterrace_optimizer_cpu -lterrace_sim -lterrace_memory -lterrace_aio -lterrace_base")
set(TERRACE_PC_PACKAGES "fmt, tbb, liburing, libhwy, jsoncpp, libxxhash")
if(BUILD_SHARED_LIBS)
  set(TERRACE_PC_REQUIRES "Requires.private: ${TERRACE_PC_PACKAGES}\nLibs.private: -laio -pthread")
else()
  string(APPEND TERRACE_PC_LIBRARIES " -laio -pthread")
  set(TERRACE_PC_REQUIRES "Requires: ${TERRACE_PC_PACKAGES}")
endif()
# The prefix follows from where the file lies, so an installed tree can be moved.
file(RELATIVE_PATH TERRACE_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file("${PROJECT_SOURCE_DIR}/cmake/terrace.pc.in" "${PROJECT_BINARY_DIR}/package/terrace.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/terrace.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
