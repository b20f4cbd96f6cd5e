# What `cmake --install` puts where; the components are the Debian packages' names.
include(CMakePackageConfigHelpers)

install(TARGETS eplbd RUNTIME COMPONENT eplbd)
install(TARGETS eplbctl RUNTIME COMPONENT eplbctl)
install(TARGETS eplb EXPORT eplbTargets
  LIBRARY COMPONENT libeplb0 NAMELINK_COMPONENT libeplb-dev)
install(FILES client/c/eplb.h client/c/eplb_plan.h TYPE INCLUDE COMPONENT libeplb-dev)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/eplb)
install(EXPORT eplbTargets NAMESPACE eplb:: DESTINATION ${package_dir} COMPONENT libeplb-dev)
configure_package_config_file(deploy/cmake/eplbConfig.cmake.in eplbConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may ask for another one's programs to be compiled again.
write_basic_package_version_file(eplbConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/eplbConfig.cmake ${PROJECT_BINARY_DIR}/eplbConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT libeplb-dev)

# Its folders are said from where the file lies, so that a prefix can be moved.
file(RELATIVE_PATH EPLB_PKGCONFIG_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" EPLB_PKGCONFIG_TO_PREFIX "${EPLB_PKGCONFIG_TO_PREFIX}")
configure_file(deploy/cmake/eplb.pc.in eplb.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/eplb.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libeplb-dev)

install(FILES README.md LICENSE TYPE DOC COMPONENT eplbd)
install(FILES ${uplot_dir}/LICENSE TYPE DOC COMPONENT eplbd RENAME uPlot-LICENSE)
install(DIRECTORY docs/ TYPE DOC COMPONENT libeplb-dev PATTERN adr EXCLUDE)
install(DIRECTORY deploy/examples/c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT libeplb-dev)
