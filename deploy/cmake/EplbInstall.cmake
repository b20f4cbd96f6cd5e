# Files that `cmake --install` installs, and their folders; the components are the Debian packages' names (EplbPackages.cmake).
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

# The demonstration's trainer, where it was built; the others are asked for.
install(TARGETS eplb-trainer RUNTIME OPTIONAL COMPONENT eplbctl)

# Writes the output of a program into a compressed page or a script at installation.
function(eplb_install_output program file component directory)
  set(made "${PROJECT_BINARY_DIR}/packages/${file}")
  string(REGEX REPLACE "[.]gz$" "" printed "${made}")
  install(CODE "
    file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/packages\")
    execute_process(COMMAND \"$<TARGET_FILE:${program}>\" ${ARGN} OUTPUT_FILE \"${printed}\" COMMAND_ERROR_IS_FATAL ANY)
    if(NOT \"${printed}\" STREQUAL \"${made}\")
      execute_process(COMMAND gzip -9nf \"${printed}\" COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT ${component})
  install(FILES "${made}" DESTINATION "${directory}" COMPONENT ${component})
endfunction()
eplb_install_output(eplbd eplbd.8.gz eplbd ${CMAKE_INSTALL_MANDIR}/man8 --man)
eplb_install_output(eplbctl eplbctl.1.gz eplbctl ${CMAKE_INSTALL_MANDIR}/man1 man)
eplb_install_output(eplbctl eplbctl eplbctl ${CMAKE_INSTALL_DATADIR}/bash-completion/completions completion bash)
eplb_install_output(eplbctl _eplbctl eplbctl ${CMAKE_INSTALL_DATADIR}/zsh/site-functions completion zsh)
eplb_install_output(eplbctl eplbctl.fish eplbctl ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d completion fish)

# The unit names the program and its configuration, whose places are known only when it is installed.
configure_file(deploy/cmake/install_service.cmake.in install_service.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/install_service.cmake COMPONENT eplbd)
install(FILES deploy/packages/eplbd.sysusers DESTINATION lib/sysusers.d RENAME eplbd.conf COMPONENT eplbd)
install(FILES deploy/prometheus/alerts.yml deploy/prometheus/prometheus.yml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/eplb/prometheus COMPONENT eplbd)
install(FILES deploy/grafana/dashboard.json DESTINATION ${CMAKE_INSTALL_DATADIR}/eplb/grafana COMPONENT eplbd)
install(FILES ${uplot_dir}/LICENSE TYPE DOC COMPONENT eplbd RENAME uPlot-LICENSE)

# Not below CMAKE_INSTALL_LIBDIR: Debian's Python reads this folder of /usr on every architecture.
install(DIRECTORY client/python/eplb DESTINATION lib/python3/dist-packages COMPONENT python3-eplb
  FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
install(PROGRAMS deploy/packages/eplb-convert TYPE BIN COMPONENT python3-eplb)

# The pages lie to each other as in the repository, so that every link leads where it leads there.
install(FILES README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md TYPE DOC COMPONENT eplb-doc)
install(DIRECTORY docs TYPE DOC COMPONENT eplb-doc)
install(DIRECTORY deploy/examples deploy/prometheus deploy/grafana DESTINATION ${CMAKE_INSTALL_DOCDIR}/deploy
  COMPONENT eplb-doc PATTERN "__pycache__" EXCLUDE)
foreach(page client/python/README.md tests/data/moe64_aux.jsonl tests/gpu/RESULTS.md
    tests/integration/fault_matrix.md)
  cmake_path(GET page PARENT_PATH folder)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT eplb-doc)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT eplb-doc)
endforeach()
